package events

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// twin is what a queue must hold, told in the plainest way.
type twin struct {
	limit    int
	pending  []*twinEvent // by the time of recording
	number   uint64       // of those recorded, but for those that were lost at once
	recorded uint64
	outcomes [outcomes]uint64
}

type twinEvent struct {
	object, message string
	number          uint64
	bytes           int
	busy            bool
	settled         bool
}

func (w *twin) of(object string) (events []*twinEvent) {
	for _, e := range w.pending {
		if e.object == object {
			events = append(events, e)
		}
	}
	return events
}

func (w *twin) bytes() int {
	bytes, objects := 0, map[string]bool{}
	for _, e := range w.pending {
		bytes += e.bytes
		objects[e.object] = true
	}
	return bytes + len(objects)*laneBytes
}

func (w *twin) settle(e *twinEvent, o outcome) {
	e.settled = true
	w.outcomes[o]++
	w.pending = slices.DeleteFunc(w.pending, func(p *twinEvent) bool { return p == e })
}

// push returns how many events are lost, and the message of the last.
func (w *twin) push(e *twinEvent, draining bool) (lost int, message string) {
	w.recorded++
	own := w.of(e.object)
	switch {
	case draining:
		w.outcomes[shutdown]++
		return 1, e.message
	case len(own) > 0 && !own[len(own)-1].busy && own[len(own)-1].message == e.message &&
		w.bytes()-own[len(own)-1].bytes+e.bytes <= w.limit:
		w.settle(own[len(own)-1], coalesced)
	case e.bytes > maxEventBytes:
		w.outcomes[overflow]++
		return 1, e.message
	default:
		// Dropped on trial first: if it does not help, nothing is.
		before := w.pending
		var victims []*twinEvent
		with := func() int {
			if len(own) > 0 && len(w.of(e.object)) > 0 {
				return w.bytes() + e.bytes
			}
			return w.bytes() + e.bytes + laneBytes
		}
		for with() > w.limit {
			candidates := slices.DeleteFunc(slices.Clone(w.pending), func(p *twinEvent) bool { return p.busy })
			if len(candidates) == 0 {
				w.pending = before
				w.outcomes[overflow]++
				return 1, e.message
			}
			victim := candidates[0]
			for _, c := range candidates {
				if c.object == e.object {
					victim = c
					break
				}
			}
			victims = append(victims, victim)
			w.pending = slices.DeleteFunc(slices.Clone(w.pending), func(p *twinEvent) bool { return p == victim })
		}
		for _, v := range victims {
			w.settle(v, overflow)
			lost, message = lost+1, v.message
		}
	}
	w.number++
	e.number = w.number
	w.pending = append(w.pending, e)
	return lost, message
}

// walk is a random walk over the operations of a queue, with its twin.
type walk struct {
	*testing.T
	*rand.Rand
	q       *queue
	counts  *counts
	twin    twin
	comes   int // workers that ask next
	held    []*held
	flushes []flushing
	stopped <-chan struct{}
	fails   float64 // the share of attempts that do
	did     map[string]int
}

// held is an event that a worker has.
type held struct {
	*item
	event *twinEvent
	since time.Time
}

type flushing struct {
	done  <-chan struct{}
	wants []*twinEvent
}

func (w *walk) started(start bool) {
	if start {
		w.comes++
	}
}

func (w *walk) push() {
	it := testItem(fmt.Sprint("object", w.IntN(5)), fmt.Sprint("message", w.IntN(3)))
	switch w.IntN(20) {
	case 0:
		it.bytes = maxEventBytes + 1
	case 1:
		it.bytes = w.IntN(w.twin.limit * 5 / 4)
	case 2:
		it.bytes = maxEventBytes
	}
	e := &twinEvent{object: it.involved.Name, message: it.message, bytes: it.bytes}
	want, message := w.twin.push(e, w.q.draining)
	lost, start := w.q.push(it)
	if lost.events != want || want > 0 && lost.one.message != message {
		w.Fatalf("lost %d events, want %d, and %q", lost.events, want, message)
	}
	w.did["lost"] += want
	w.started(start)
}

func (w *walk) take() {
	if w.comes == 0 {
		return
	}
	w.comes--
	it, start := w.q.take()
	w.started(start)
	if it == nil {
		return
	}
	e := w.twin.of(it.involved.Name)[0]
	if e.busy || e.number != it.key.number || it.key.source != w.q.source || e.message != it.message || w.stopped != nil {
		w.Fatalf("took %q as %v, the first of its object is %+v", it.message, it.key, e)
	}
	now := time.Now()
	old := w.q.tooOld(it, now)
	if !old && !w.q.endpoint.down && it.suspect && w.q.failedBusy > max(1, w.q.maxWorkers/2) {
		w.Fatalf("%d failed lanes are busy", w.q.failedBusy)
	}
	e.busy = true
	w.held = append(w.held, &held{it, e, now})
	w.did["take"]++
}

// attempted ends a random attempt.
func (w *walk) attempted() {
	if len(w.held) == 0 {
		return
	}
	i := w.IntN(len(w.held))
	h := w.held[i]
	w.held = slices.Delete(w.held, i, i+1)
	w.comes++
	settle := func(o outcome) {
		if !h.event.settled {
			w.twin.settle(h.event, o)
			w.did[o.String()]++
		}
		w.q.settle(h.item, o)
	}
	if w.q.tooOld(h.item, h.since) {
		settle(expired)
		return
	}
	a := ended{began: h.since, at: time.Now(), served: w.Float64() > w.fails, spoke: w.IntN(2) == 0}
	wasDown := w.q.endpoint.down
	v := w.q.judge(h.item, a)
	if v.changed {
		w.did["changed"]++
		if len(w.q.waiting) != 0 {
			w.Fatal("the endpoint went down or came back, and somebody waits")
		}
	}
	switch {
	case a.served:
		settle([]outcome{delivered, duplicate, rejected}[w.IntN(3)])
	case v.giveUp:
		settle(exhausted)
	default:
		h.event.busy = false
		w.q.retry(h.item, []time.Duration{0, 10 * time.Millisecond, 1500 * time.Millisecond, 20 * time.Second}[w.IntN(4)], w.IntN(3) == 0)
		if wasDown {
			w.did["retry while down"]++
		}
	}
}

func (w *walk) advance() {
	time.Sleep([]time.Duration{time.Millisecond, 700 * time.Millisecond, 3 * time.Second, time.Minute}[w.IntN(4)] / time.Duration(1+w.IntN(3)))
	synctest.Wait()
}

func (w *walk) flush() {
	done, forget := w.q.flushed()
	if w.IntN(4) == 0 {
		forget()
	} else {
		w.flushes = append(w.flushes, flushing{done, slices.Clone(w.twin.pending)})
	}
}

func (w *walk) check(step string) {
	w.q.mu.Lock()
	err := w.q.checkLocked(time.Now(), w.comes)
	w.q.mu.Unlock()
	if workers := w.comes + len(w.held); workers != w.q.workers || workers > w.q.maxWorkers {
		w.Errorf("%d workers, counted as %d, limit %d", workers, w.q.workers, w.q.maxWorkers)
	}
	var want, got []uint64
	for _, e := range w.twin.pending {
		want = append(want, e.number)
	}
	for it := w.q.pending.front; it != nil; it = it.next {
		got = append(got, it.key.number)
	}
	if !slices.Equal(got, want) {
		w.Errorf("pending %v, want %v", got, want)
	}
	s := checkSum(w.T, w.counts)
	if s.outcomes != w.twin.outcomes || s.recorded != w.twin.recorded || s.bytes != w.twin.bytes() {
		w.Errorf("counts %+v, want %d: %v, %d bytes", s, w.twin.recorded, w.twin.outcomes, w.twin.bytes())
	}
	for _, f := range w.flushes {
		pending := slices.ContainsFunc(f.wants, func(e *twinEvent) bool { return !e.settled })
		if isDone(f.done) == pending {
			w.Errorf("a flush is done: %v, though its events are pending: %v", isDone(f.done), pending)
		}
	}
	if err != nil || w.Failed() {
		w.Fatalf("after %s: %v", step, err)
	}
}

// end stops the queue and settles the rest, with attempts in flight that end
// before or after that.
func (w *walk) end() {
	w.stopped = w.q.stop()
	w.check("stop")
	if w.IntN(2) == 0 {
		for len(w.held) > 0 {
			w.attempted()
			w.check("attempt of a stopped queue")
		}
	}
	for w.comes > 0 {
		w.take()
		w.check("take from a stopped queue")
	}
	if isDone(w.stopped) != (len(w.held) == 0) {
		w.Fatalf("stopped: %v, with %d workers", isDone(w.stopped), len(w.held))
	}
	left := len(w.twin.pending)
	for _, e := range slices.Clone(w.twin.pending) {
		w.twin.settle(e, shutdown)
	}
	if lost, _ := w.q.abandon(shutdown); lost.events != left || (lost.one != nil) != (left > 0) {
		w.Fatalf("abandoned %d, want %d", lost.events, left)
	}
	for len(w.held) > 0 {
		w.attempted()
		w.take()
	}
	if !isDone(w.stopped) {
		w.Fatal("not stopped without workers")
	}
	w.q.failedBusy = 0 // of no use any more
	w.check("the end")
}

// The queue against a plain model of it, over random operations in virtual time.
func TestQueueBehavesAsItsModel(t *testing.T) {
	did := map[string]int{}
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &walk{T: t, Rand: rand.New(rand.NewPCG(seed, 1)), counts: newCollector().of("test"), did: did}
				w.twin.limit = (4 + w.IntN(8)) * (testItem("object0", "message0").bytes + laneBytes)
				w.q = newQueue(&options{queueBytes: w.twin.limit, concurrency: 1 + w.IntN(5), maxAge: time.Minute, retryMax: w.IntN(4)},
					w.counts, seed, func() { w.started(w.q.timerDue()) })
				const steps = 600
				for i := range steps {
					step := "drain"
					if w.IntN(40) == 0 {
						w.fails = []float64{0, 0.2, 0.6, 1}[w.IntN(4)]
					}
					switch n := w.IntN(100); {
					case n < 25:
						step = "push"
						w.push()
					case n < 60:
						step = "take"
						w.take()
					case n < 85:
						step = "attempt"
						w.attempted()
					case n < 97:
						step = "time"
						w.advance()
					case n < 99:
						step = "flush"
						w.flush()
					case i > steps*4/5:
						w.started(w.q.drain())
					}
					w.check(fmt.Sprintf("step %d, %s", i, step))
				}
				w.end()
			})
		})
	}
	// The walk went everywhere.
	for _, what := range []string{"take", "lost", "changed", "retry while down", "delivered", "exhausted", "expired"} {
		if did[what] < 100 {
			t.Errorf("%s only %d times: %v", what, did[what], did)
		}
	}
	t.Log(slices.Sorted(maps.Keys(did)), did)
}
