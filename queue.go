package events

import (
	"errors"
	"sync"
	"time"
	"unsafe"
)

// laneKey stands for an object: events about different objects may overtake each
// other, events about one object may not. It is a hash, so that a lane costs
// little memory. Should two objects have the same, they share a lane.
type laneKey uint64

// laneBytes is the memory of a lane: its struct and its place in the map, which
// is between 7/16 and 7/8 full.
var laneBytes = heapBytes(int(unsafe.Sizeof(lane{}))) + int(unsafe.Sizeof(laneKey(0))+unsafe.Sizeof((*lane)(nil)))*3/2

// queue holds the events that wait for the endpoint: a lane for each object
// that has any, first in, first out.
//
// A lane is ready (in the list of ready lanes) or busy (a worker has its head).
// The event being posted stays at the head of its lane until it is settled, so
// no later event of the object can pass it. A lane without events is dropped.
//
// Workers are goroutines, but the queue only counts them: push says when
// another one is wanted, and take returns nil when one must end.
type queue struct {
	limit      int // of bytes
	maxWorkers int
	counts     *counts

	// mu guards all below. Nothing slow happens under it: no I/O, no logging,
	// no callback. Only counts.mu is ever taken while it is held.
	mu      sync.Mutex
	lanes   map[laneKey]*lane
	ready   list[lane, *lane] // the lane that has waited longest in front
	pending list[item, *item] // all events, the one recorded first in front
	size    int               // of pending
	bytes   int               // held by the events and their lanes
	pinned  int               // bytes of the events being posted and their lanes
	seq     uint64            // of the event recorded last
	workers int
	peak    int // lanes at a time since the map was made

	closed  bool          // by close: takes no more events
	stopped bool          // by stop: hands out no more events
	quit    chan struct{} // made by stop, closed when no worker is left
	waiters []*waiter
}

type lane struct {
	links[lane]
	key        laneKey
	head, tail *item
	busy       bool
}

// item is an event in the queue. lane is nil once it is settled.
type item struct {
	notification
	links[item]
	lane   *lane
	behind *item // the next in the lane
	seq    uint64

	// What only the worker that has the item uses: when its latest attempt
	// ended, and how many of its deliveries began after another event had been
	// answered since.
	failed  time.Duration
	strikes int
}

// waiter waits until every event up to a sequence number is settled.
type waiter struct {
	upTo uint64
	left int
	done chan struct{}
}

func newQueue(limit, maxWorkers int, counts *counts) *queue {
	return &queue{limit: limit, maxWorkers: maxWorkers, counts: counts}
}

// pushed says what came of an event that was pushed.
type pushed struct {
	startWorker bool          // the caller must start a worker
	lost        outcome       // why events were lost, if any were
	lostEvents  int           // how many
	lostFirst   *notification // one of them
}

// push puts an event into its lane, or folds it into the event that waits last
// there if that says the same. If the limit is reached, events are dropped
// until the new one fits: the oldest waiting one of the same object, else the
// oldest waiting one of all. An event that is being posted is never dropped.
func (q *queue) push(it *item) pushed {
	key := it.laneKey()

	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts.record()
	if q.closed {
		q.counts.settle(shutdown)
		return pushed{lost: shutdown, lostEvents: 1, lostFirst: &it.notification}
	}

	l := q.lanes[key]
	if l != nil && !l.isBusy(l.tail) && l.tail.equal(&it.notification) {
		q.foldLocked(l.tail, &it.notification)
		return pushed{}
	}

	need, pinned := it.bytes, q.pinned
	switch {
	case l == nil:
		need += laneBytes
	case !l.busy:
		pinned += laneBytes
	}
	var result pushed
	if need > q.limit-pinned {
		// It would not fit if everything else were dropped.
		q.counts.settle(overflow)
		result.lose(it)
		return result
	}
	for q.bytes+need > q.limit {
		var victim *item
		if l != nil {
			victim = l.firstWaiting()
		}
		if victim == nil {
			victim = q.oldestWaitingLocked()
		}
		result.lose(victim)
		q.removeLocked(victim, overflow)
		if victim.lane != l && victim.lane.head == nil {
			q.dropLaneLocked(victim.lane)
		}
		victim.lane = nil
	}

	if l == nil {
		l = &lane{key: key}
		q.addLaneLocked(l)
	}
	q.seq++
	it.seq, it.lane = q.seq, l
	if l.head == nil {
		l.head = it
	} else {
		l.tail.behind = it
	}
	l.tail = it
	q.pending.pushBack(it)
	q.resizeLocked(1, it.bytes)

	if q.ready.front != nil && q.workers < q.maxWorkers && !q.stopped {
		q.workers++
		result.startWorker = true
	}
	return result
}

// cause says why events were lost.
func (p *pushed) cause() error {
	if p.lost == shutdown {
		return errors.New("recorded after Shutdown")
	}
	return errors.New("the queue is full")
}

func (p *pushed) lose(it *item) {
	p.lost = overflow
	p.lostEvents++
	if p.lostFirst == nil {
		p.lostFirst = &it.notification
	}
}

// take hands the worker the head of the lane that has been ready longest. nil
// means that there is nothing to do and the worker must end.
func (q *queue) take() *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.ready.front
	if l == nil || q.stopped {
		q.workers--
		if q.stopped && q.workers == 0 {
			close(q.quit)
		}
		return nil
	}
	q.ready.remove(l)
	l.busy = true
	q.pinned += laneBytes + l.head.bytes
	return l.head
}

// settle ends an event that a worker has taken, unless a shutdown has given it
// up meanwhile.
func (q *queue) settle(it *item, o outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := it.lane
	if l == nil {
		return
	}
	q.pinned -= laneBytes + it.bytes
	q.removeLocked(it, o)
	it.lane = nil
	if l.head == nil {
		q.dropLaneLocked(l)
	} else {
		l.busy = false
		q.ready.pushBack(l)
	}
}

// putBack leaves an event that a worker has taken at the head of its lane, and
// puts the lane at the end of the ready ones.
func (q *queue) putBack(it *item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := it.lane; l != nil {
		q.pinned -= laneBytes + it.bytes
		l.busy = false
		q.ready.pushBack(l)
	}
}

// drained returns a channel that is closed once every event recorded so far is
// settled, and a function to call when nobody waits for it any more.
func (q *queue) drained() (done <-chan struct{}, forget func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{upTo: q.seq, left: q.size, done: make(chan struct{})}
	if w.left == 0 {
		close(w.done)
		return w.done, func() {}
	}
	q.waiters = append(q.waiters, w)
	return w.done, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.dropWaiterLocked(w)
	}
}

// close makes the queue take no more events.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// stop makes the queue hand out no more events. It returns a channel that is
// closed when the last worker has ended. It must be called only once.
func (q *queue) stop() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped = true
	q.quit = make(chan struct{})
	if q.workers == 0 {
		close(q.quit)
	}
	return q.quit
}

// abandon settles every event that is left, as shutdown, and returns how many
// there were and one of them.
func (q *queue) abandon() (int, *notification) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.size
	var first *notification
	for it := q.pending.front; it != nil; it = q.pending.front {
		if first == nil {
			first = &it.notification
		}
		q.pending.remove(it)
		q.resizeLocked(-1, -it.bytes)
		q.counts.settle(shutdown)
		q.settledLocked(it)
		it.lane = nil
	}
	q.counts.hold(-len(q.lanes) * laneBytes)
	q.lanes, q.ready, q.bytes, q.pinned, q.peak = nil, list[lane, *lane]{}, 0, 0, 0
	return n, first
}

// length is the number of events that are not settled.
func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// oldest is when the event that has waited longest was recorded.
func (q *queue) oldest() (time.Time, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending.front == nil {
		return time.Time{}, false
	}
	return q.pending.front.recorded, true
}

// foldLocked replaces a waiting event by one that says the same later or, if
// that is larger than the limit allows, gives it its time.
func (q *queue) foldLocked(into *item, n *notification) {
	if more := n.bytes - into.bytes; q.bytes+more <= q.limit {
		q.resizeLocked(0, more)
		into.notification = *n
	} else {
		into.recorded = n.recorded
	}
	q.pending.remove(into)
	q.pending.pushBack(into)
	q.counts.settle(coalesced)
}

// removeLocked takes an event out of its lane and settles it. The event is the
// head of the lane or, if that is being posted, the one behind it.
func (q *queue) removeLocked(it *item, o outcome) {
	l := it.lane
	if l.head == it {
		l.head = it.behind
		if l.head == nil {
			l.tail = nil
		}
	} else {
		l.head.behind = it.behind
		if l.tail == it {
			l.tail = l.head
		}
	}
	it.behind = nil
	q.pending.remove(it)
	q.resizeLocked(-1, -it.bytes)
	q.counts.settle(o)
	q.settledLocked(it)
}

// settledLocked tells those who wait for the event. It is counted by then, so
// that they find it so.
func (q *queue) settledLocked(it *item) {
	for i := len(q.waiters) - 1; i >= 0; i-- {
		w := q.waiters[i]
		if it.seq > w.upTo {
			continue
		}
		if w.left--; w.left == 0 {
			close(w.done)
			q.dropWaiterLocked(w)
		}
	}
}

func (q *queue) dropWaiterLocked(w *waiter) {
	for i := range q.waiters {
		if q.waiters[i] == w {
			last := len(q.waiters) - 1
			q.waiters[i], q.waiters[last] = q.waiters[last], nil
			q.waiters = q.waiters[:last]
			return
		}
	}
}

func (q *queue) addLaneLocked(l *lane) {
	if q.lanes == nil {
		q.lanes = make(map[laneKey]*lane)
	}
	q.lanes[l.key] = l
	q.peak = max(q.peak, len(q.lanes))
	q.ready.pushBack(l)
	q.resizeLocked(0, laneBytes)
}

func (q *queue) dropLaneLocked(l *lane) {
	if !l.busy {
		q.ready.remove(l)
	}
	delete(q.lanes, l.key)
	q.resizeLocked(0, -laneBytes)
	if q.peak > 64 && len(q.lanes) < q.peak/4 {
		// A map never shrinks by itself, and neither does its clone.
		smaller := make(map[laneKey]*lane, len(q.lanes))
		for k, l := range q.lanes {
			smaller[k] = l
		}
		q.lanes, q.peak = smaller, len(smaller)
	}
}

func (q *queue) resizeLocked(events, bytes int) {
	was := q.size
	q.size += events
	q.bytes += bytes
	q.counts.hold(bytes)
	if (was == 0) != (q.size == 0) {
		q.counts.active(q, q.size > 0)
	}
}

// oldestWaitingLocked is the event recorded first of all that are not being
// posted, or nil. At most one event for each worker is passed over.
func (q *queue) oldestWaitingLocked() *item {
	for it := q.pending.front; it != nil; it = it.next {
		if !it.lane.isBusy(it) {
			return it
		}
	}
	return nil
}

// firstWaiting is the event of the lane that will be posted next, or nil.
func (l *lane) firstWaiting() *item {
	if l.busy {
		return l.head.behind
	}
	return l.head
}

func (l *lane) isBusy(it *item) bool { return l.busy && l.head == it }

func (l *lane) link() *links[lane]  { return &l.links }
func (it *item) link() *links[item] { return &it.links }
