package events

import (
	"slices"
	"strconv"
	"sync"
	"time"
)

// drainWait is the longest wait between two attempts in a drain: an endpoint that is
// back must get everything before the drain ends.
const drainWait = time.Second

// queue holds the events that wait for the endpoint: a lane for each object
// that has any, first in, first out.
//
// The head of a lane stays there until it is settled, attempts and waits included,
// so no later event of the object can pass it. A lane without events is dropped.
// A lane is in exactly one place:
//
//   - fresh or failed: ready, in the order of waiting. It is in failed if its head
//     has failed while the endpoint was up. The two take turns, and failed lanes
//     hold at most half of the workers, so that fresh events always pass.
//   - waiting: until a time, in a heap. A wait holds no worker and no goroutine.
//   - busy: a worker makes an attempt for its head.
//
// Whatever is pending, a worker or the timer comes for it: a worker asks for the
// next event when it is done with one, and whoever makes a lane ready starts a
// worker, or arms the one timer for the next moment at which a lane can be taken.
//
// Workers are goroutines, but the queue only counts them: it says when another
// one is wanted, and take returns nil when one must end.
type queue struct {
	limit      int // of bytes
	maxWorkers int
	maxAge     time.Duration
	source     uint64 // of this recorder, see eventKey
	counts     *counts
	timerFired func()    // called on a goroutine of its own
	began      time.Time // see lane.until

	// mu guards all below. Nothing slow happens under it: no I/O, no logging,
	// no callback.
	mu       sync.Mutex
	endpoint endpoint
	lanes    map[laneKey]*lane
	in       [places]list[lane, *lane] // but for those that wait; the longest there in front
	waiting  laneHeap
	pending  list[item, *item] // all events, by seq
	size     int               // of pending
	bytes    int               // held by the events and their lanes
	seq      uint64            // of the event recorded last
	turn     place             // fresh or failed: which comes first at the next take

	workers      int
	failedBusy   int // busy lanes whose head had failed
	timer        *time.Timer
	timerAt      time.Time // zero: not armed
	draining     bool      // takes no more events, and waits no longer than drainWait
	stopped      bool      // hands out no more events
	quit         chan struct{}
	flushWaiters []flushWaiter

	// For the journal, see persistence. journaled is nil without one, and set before
	// the first event.
	journaled    func()
	unsavedFirst *item    // the first of pending that is not in the journal
	done         []uint64 // of those in the journal, what is settled
	saveTimer    *time.Timer
	saveArmed    bool // the timer is set, or what it starts is running
}

// item is an event in the queue. lane is nil once it is settled.
type item struct {
	notification
	history
	links[item]
	lane   *lane
	behind *item // the next in the lane
	seq    uint64
	key    eventKey
	saved  bool // in the journal
}

// eventKey names an event towards the endpoint, the same on every attempt and
// in every process: the recorder that recorded it, and its number there.
type eventKey struct{ source, number uint64 }

func (k eventKey) String() string {
	b := make([]byte, 0, 40)
	b = strconv.AppendUint(b, k.source, 16)
	return string(strconv.AppendUint(append(b, '-'), k.number, 10))
}

// flushWaiter waits until every event up to a sequence number is settled.
type flushWaiter struct {
	upTo uint64
	done chan struct{}
}

func newQueue(o *options, counts *counts, source uint64, timerFired func()) *queue {
	return &queue{limit: o.queueBytes, maxWorkers: o.concurrency, maxAge: o.maxAge, source: source, counts: counts,
		timerFired: timerFired, began: time.Now(), turn: fresh, endpoint: endpoint{maxStrikes: float64(o.retryMax)}}
}

// push puts an event that was recorded just now into its lane, or folds it into the event that waits last
// there if that says the same. If the limit is reached, events are dropped
// until the new one fits: the oldest waiting one of the same object, else the
// oldest waiting one of all. An event that is being posted is never dropped. If
// startWorker is true, the caller must start one.
func (q *queue) push(it *item) (lost loss, startWorker bool) {
	key := it.laneKey()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts.recorded.Add(1)
	if q.draining {
		q.counts.settle(shutdown)
		return loss{shutdown, errClosed, 1, &it.notification}, false
	}
	l := q.lanes[key]
	if l != nil && !l.isBusy(l.tail) && l.tail.equal(&it.notification) && q.bytes-l.tail.bytes+it.bytes <= q.limit {
		q.foldLocked(l.tail, it)
		return loss{}, false
	}
	lost, fits := q.makeRoomLocked(l, it)
	if !fits {
		return lost, false
	}
	if l == nil {
		l = q.addLaneLocked(key)
	}
	q.seq++
	it.seq, it.key = q.seq, eventKey{q.source, q.seq}
	q.appendLocked(l, it)
	return lost, q.startLocked(it.recorded)
}

// take hands a worker the head of a lane. nil means that there is nothing to do and
// the worker must end. If startWorker is true, there is something for another one.
func (q *queue) take() (it *item, startWorker bool) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.nextLocked(now)
	if l == nil {
		q.workers--
		q.armLocked(now)
		if q.stopped && q.workers == 0 {
			close(q.quit)
		}
		return nil, false
	}
	if q.turn = fresh; l.class() == fresh {
		q.turn = failed
	}
	if !q.tooOld(l.head, now) {
		q.endpoint.started(now, q.draining)
	}
	q.moveLocked(l, busy)
	return l.head, q.startLocked(now)
}

// judge takes in how the attempt of a taken event ended, unless a shutdown has given
// it up meanwhile: no outage begins then that nothing would end.
func (q *queue) judge(it *item, a ended) verdict {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.lane == nil {
		return verdict{}
	}
	v := q.endpoint.judge(&it.history, a)
	if v.changed {
		q.readyLocked()
	}
	return v
}

// settle ends an event that was taken, unless a shutdown has given it up
// meanwhile. It reports whether an announced outage ends because nothing is left
// to ask the endpoint about.
func (q *queue) settle(it *item, o outcome) (over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.lane == nil {
		return false
	}
	l := it.lane
	q.moveLocked(l, l.class())
	q.dropLocked(it, o)
	if l.head == nil {
		q.dropLaneLocked(l)
	}
	return q.size == 0 && q.endpoint.forget()
}

// retry leaves an event that was taken at the head of its lane. While the
// endpoint is down its probes set the pace; only a wait that the endpoint asked for
// counts all the same.
func (q *queue) retry(it *item, wait time.Duration, asked bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.lane == nil {
		return
	}
	l := it.lane
	if q.draining {
		wait = min(wait, drainWait)
	}
	if wait > 0 && (asked || !q.endpoint.down) {
		l.until = time.Since(q.began) + wait
		q.moveLocked(l, waiting)
	} else {
		q.moveLocked(l, l.class())
	}
}

// timerDue is called by the timer.
func (q *queue) timerDue() (startWorker bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timerAt = time.Time{}
	return q.startLocked(time.Now())
}

// flushed returns a channel that is closed once every event recorded so far is
// settled, and a function to call when nobody waits for it any more.
func (q *queue) flushed() (done <-chan struct{}, forget func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := flushWaiter{q.seq, make(chan struct{})}
	q.flushWaiters = append(q.flushWaiters, w)
	q.tellWaitersLocked()
	return w.done, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.keepWaitersLocked(func(o flushWaiter) bool { return o != w })
	}
}

// drain takes no more events, and ends all waits.
func (q *queue) drain() (startWorker bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.draining = true
	q.readyLocked()
	return q.startLocked(time.Now())
}

// down reports whether the endpoint is down.
func (q *queue) down() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.endpoint.down
}

// stop makes the queue hand out no more events. It returns a channel that is
// closed when the last worker has ended. It must be called only once.
func (q *queue) stop() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.armLocked(time.Now())
	if q.saveTimer != nil {
		q.saveTimer.Stop()
	}
	q.quit = make(chan struct{})
	if q.workers == 0 {
		close(q.quit)
	}
	return q.quit
}

// abandon settles every event that is left. It reports what was lost, and
// whether an announced outage ends with that.
func (q *queue) abandon(o outcome) (lost loss, over bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lost.outcome = o
	for it := q.pending.front; it != nil; it = q.pending.front {
		lost.events++
		lost.one = &it.notification
		q.pending.remove(it)
		q.resizeLocked(-1, -it.bytes)
		q.counts.settle(o)
		it.lane = nil
	}
	q.lanes, q.in, q.waiting, q.bytes = nil, [places]list[lane, *lane]{}, nil, 0
	q.unsavedFirst, q.done = nil, nil
	q.tellWaitersLocked()
	return lost, q.endpoint.forget()
}

// length is the number of events that are not settled.
func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// held is the memory of the pending events, and when the one that has waited
// longest was recorded.
func (q *queue) held() (bytes int, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending.front != nil {
		oldest = q.pending.front.recorded
	}
	return q.bytes, oldest
}

// nextLocked is the lane to take now, or nil.
func (q *queue) nextLocked(now time.Time) *lane {
	if q.stopped {
		return nil
	}
	for len(q.waiting) > 0 && !q.due(q.waiting[0]).After(now) {
		q.moveLocked(q.waiting[0], q.waiting[0].class())
	}
	// An event that is too old goes at once: it needs no attempt.
	if it := q.pending.front; it != nil && it.lane.place != busy && q.tooOld(it, now) {
		return it.lane
	}
	if !q.endpoint.mayStart(now) {
		return nil
	}
	first, second := q.in[fresh].front, q.in[failed].front
	// Probes are few: no bad event can take the workers from the others.
	if !q.endpoint.down && q.failedBusy >= max(1, q.maxWorkers/2) {
		second = nil
	}
	if q.turn == failed && second != nil || first == nil {
		return second
	}
	return first
}

func (q *queue) tooOld(it *item, now time.Time) bool { return now.Sub(it.recorded) > q.maxAge }

// startLocked sees to it that somebody comes for what is pending: a worker that
// the caller must start, one that runs already, or the timer.
func (q *queue) startLocked(now time.Time) bool {
	if q.workers < q.maxWorkers && q.nextLocked(now) != nil {
		q.workers++
		return true
	}
	q.armLocked(now)
	return false
}

// armLocked sets the timer for the next moment at which a lane that cannot be
// taken now can be. A lane that only lacks a worker needs none: the next worker
// that is free takes it.
func (q *queue) armLocked(now time.Time) {
	var at time.Time
	if !q.stopped {
		if len(q.waiting) > 0 {
			at = q.due(q.waiting[0])
		}
		ready := q.in[fresh].front != nil || q.in[failed].front != nil
		if ready && !q.endpoint.mayStart(now) && (at.IsZero() || q.endpoint.nextProbe.Before(at)) {
			at = q.endpoint.nextProbe
		}
	}
	switch {
	case at.Equal(q.timerAt):
	case !at.After(now):
		q.timerAt = time.Time{}
		if q.timer != nil {
			q.timer.Stop()
		}
	case q.timer == nil:
		q.timerAt = at
		q.timer = time.AfterFunc(at.Sub(now), q.timerFired)
	default:
		q.timerAt = at
		q.timer.Reset(at.Sub(now))
	}
}

// appendLocked puts an event at the end of a lane. If that waits, it goes on waiting.
func (q *queue) appendLocked(l *lane, it *item) {
	it.lane = l
	first := l.head == nil
	if first {
		l.head = it
	} else {
		l.tail.behind = it
	}
	l.tail = it
	q.pending.pushBack(it)
	q.addedLocked(it)
	q.resizeLocked(1, it.bytes)
	if first {
		q.reclassLocked(l)
	}
}

// foldLocked puts an event in the place of one that says the same. What that one
// has been through stays: the endpoint cannot tell them apart.
func (q *queue) foldLocked(into, it *item) {
	q.seq++
	q.leavesLocked(into)
	q.pending.remove(into)
	q.resizeLocked(0, it.bytes-into.bytes)
	into.notification, into.seq, into.key = it.notification, q.seq, eventKey{q.source, q.seq}
	if n := len(into.metadata); n <= len(into.few) {
		into.metadata = into.few[:n] // its own, or it would hold the other item
	}
	q.pending.pushBack(into)
	q.addedLocked(into)
	q.counts.settle(coalesced)
	q.tellWaitersLocked()
}

// dropLocked takes an event out of its lane and settles it. The event is the head
// of the lane or, if that is being posted, the one behind it.
func (q *queue) dropLocked(it *item, o outcome) {
	l := it.lane
	if l.head == it {
		l.head = it.behind
		if l.head == nil {
			l.tail = nil
		}
		q.reclassLocked(l)
	} else {
		l.head.behind = it.behind
		if l.tail == it {
			l.tail = l.head
		}
	}
	it.lane, it.behind = nil, nil
	q.leavesLocked(it)
	q.pending.remove(it)
	q.resizeLocked(-1, -it.bytes)
	q.counts.settle(o)
	q.tellWaitersLocked()
}

// tellWaitersLocked tells those whose events are all settled. They are counted by
// then, so that who waited finds them so.
func (q *queue) tellWaitersLocked() {
	if len(q.flushWaiters) == 0 {
		return
	}
	q.keepWaitersLocked(func(w flushWaiter) bool {
		if q.pending.front != nil && q.pending.front.seq <= w.upTo {
			return true
		}
		close(w.done)
		return false
	})
}

func (q *queue) keepWaitersLocked(keep func(flushWaiter) bool) {
	q.flushWaiters = slices.DeleteFunc(q.flushWaiters, func(w flushWaiter) bool { return !keep(w) })
}

func (q *queue) resizeLocked(events, bytes int) {
	was := q.size
	q.size += events
	q.bytes += bytes
	if (was == 0) != (q.size == 0) {
		q.counts.active(q, q.size > 0)
	}
}
