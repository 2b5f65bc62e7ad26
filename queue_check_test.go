package events

import (
	"errors"
	"fmt"
	"time"
)

// checkLocked returns what is wrong with the queue. comes is the number of workers
// that will ask for an event without being started.
func (q *queue) checkLocked(now time.Time, comes int) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	// A lane is in exactly one place, and the places know only lanes of the map.
	at := map[*lane]place{}
	for _, p := range []place{fresh, failed, busy} {
		var before *lane
		for l := q.in[p].front; l != nil; before, l = l, l.next {
			if at[l] != nowhere {
				wrong("a lane is in %v and in %v", at[l], p)
				break
			}
			if l.prev != before {
				wrong("a lane in %v has a false predecessor", p)
			}
			at[l] = p
		}
		if q.in[p].back != before {
			wrong("the last lane in %v is not its back", p)
		}
	}
	for i, l := range q.waiting {
		if at[l] != nowhere {
			wrong("a waiting lane is in %v", at[l])
		}
		if l.index != i || i > 0 && l.until < q.waiting[(i-1)/2].until {
			wrong("the heap is in disorder at %d", i)
		}
		if l.links != (links[lane]{}) {
			wrong("a waiting lane keeps others in memory")
		}
		at[l] = waiting
	}
	for _, l := range q.waiting[len(q.waiting):cap(q.waiting)] {
		if l != nil {
			wrong("the heap keeps a lane that is not in it")
		}
	}
	if len(at) != len(q.lanes) {
		wrong("%d lanes in all places, %d in the map", len(at), len(q.lanes))
	}

	bytes, size, failedBusy := 0, 0, 0
	members := map[*item]bool{}
	for key, l := range q.lanes {
		if l.key != key || l.place != at[l] || l.place == nowhere {
			wrong("a lane is in %v and says %v", at[l], l.place)
		}
		if l.head == nil || l.tail == nil || l.tail.behind != nil {
			wrong("a lane without events, or with a false end")
			continue
		}
		class := fresh
		if l.head.suspect {
			class = failed
		}
		if (l.place == fresh || l.place == failed) && l.place != class {
			wrong("a lane is in %v, its head belongs in %v", l.place, class)
		}
		if l.place == busy && l.wasFailed {
			failedBusy++
		}
		bytes += laneBytes
		var last *item
		for it := l.head; it != nil; last, it = it, it.behind {
			if it.lane != l || last != nil && it.seq <= last.seq {
				wrong("event %d is in the wrong lane or out of order", it.seq)
			}
			members[it] = true
			bytes += it.bytes
			size++
		}
		if last != l.tail {
			wrong("the last event of a lane is not its tail")
		}
	}
	var last *item
	for it := q.pending.front; it != nil; last, it = it, it.next {
		if !members[it] {
			wrong("pending event %d is in no lane", it.seq)
		}
		delete(members, it)
		if last != nil && it.seq <= last.seq || it.prev != last {
			wrong("pending event %d is out of order", it.seq)
		}
	}
	if len(members) != 0 || q.pending.back != last {
		wrong("%d events of lanes are not pending", len(members))
	}
	if q.bytes != bytes || q.size != size || q.bytes > q.limit {
		wrong("%d events in %d bytes, counted as %d in %d, limit %d", size, bytes, q.size, q.bytes, q.limit)
	}
	if q.failedBusy != failedBusy {
		wrong("%d failed lanes are busy, counted as %d", failedBusy, q.failedBusy)
	}
	if len(q.lanes) == 0 && (q.lanes != nil || q.waiting != nil) {
		wrong("no lane, but memory for some")
	}
	for _, w := range q.flushWaiters {
		if q.pending.front == nil || q.pending.front.seq > w.upTo {
			wrong("somebody waits for events up to %d that are all settled", w.upTo)
		}
	}
	return errors.Join(append(errs, q.checkSomebodyComes(now, comes))...)
}

// checkSomebodyComes returns an error if something is pending that neither a worker
// nor the timer comes for.
func (q *queue) checkSomebodyComes(now time.Time, comes int) error {
	if !q.timerAt.IsZero() && q.timerAt.Before(now) {
		return fmt.Errorf("the timer is set for %v ago", now.Sub(q.timerAt))
	}
	if q.stopped {
		if !q.timerAt.IsZero() {
			return errors.New("a stopped queue has a timer")
		}
		return nil
	}
	if q.workers == q.maxWorkers || comes > 0 {
		return nil
	}
	var next time.Time // the first moment in the future at which a lane can be taken
	sooner := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, l := range q.lanes {
		switch {
		case l.place == busy:
		case l.place == waiting && q.due(l).After(now):
			sooner(q.due(l))
		case q.endpoint.down && now.Before(q.endpoint.nextProbe):
			sooner(q.endpoint.nextProbe)
		case q.endpoint.down, !l.head.suspect, q.failedBusy < max(1, q.maxWorkers/2):
			return fmt.Errorf("%d of %d workers, and none comes for a lane in %v", q.workers, q.maxWorkers, l.place)
		}
	}
	if !next.Equal(q.timerAt) {
		return fmt.Errorf("the timer is set for %v, not for %v", q.timerAt, next)
	}
	return nil
}
