package events

import (
	"errors"
	"fmt"
)

// maxEventBytes is the largest body that notification-controller takes. One event
// above it must not push thousands of others out of the queue.
const maxEventBytes = 3 << 20

// loss says what was lost by an operation of the queue. The zero loss is none.
type loss struct {
	outcome outcome
	cause   error
	events  int
	one     *notification // one of them
}

var (
	errQueueFull = errors.New("the queue is full")
	errTooLarge  = fmt.Errorf("the event is larger than %d MiB", maxEventBytes>>20)
	errClosed    = errors.New("recorded after Shutdown")
)

// makeRoomLocked drops events until the new one fits, or finds that it cannot.
// l is its lane, nil if it has none yet.
func (q *queue) makeRoomLocked(l *lane, it *item) (lost loss, fits bool) {
	need := it.bytes
	if l == nil {
		need += laneBytes
	}
	if it.bytes > maxEventBytes {
		q.counts.settle(overflow)
		return loss{overflow, errTooLarge, 1, &it.notification}, false
	}
	if q.bytes+need <= q.limit {
		return loss{}, true
	}
	lost = loss{outcome: overflow, cause: errQueueFull, one: &it.notification}
	if need > q.limit-q.pinnedLocked(l) {
		q.counts.settle(overflow)
		lost.events++
		return lost, false
	}
	for q.bytes+need > q.limit {
		victim := q.victimLocked(l)
		lost.events++
		lost.one = &victim.notification
		from := victim.lane
		q.dropLocked(victim, overflow)
		if from != l && from.head == nil {
			q.dropLaneLocked(from)
		}
	}
	return lost, true
}

// pinnedLocked is the memory that is not to be had: events being posted, their
// lanes, and the lane that the new event goes to.
func (q *queue) pinnedLocked(l *lane) int {
	bytes := 0
	if l != nil && l.place != busy {
		bytes = laneBytes
	}
	for b := q.in[busy].front; b != nil; b = b.next {
		bytes += laneBytes + b.head.bytes
	}
	return bytes
}

// victimLocked is the event to drop: the oldest waiting one of the lane, else the
// oldest waiting one of all. At most one event for each worker is passed over.
func (q *queue) victimLocked(l *lane) *item {
	if l != nil {
		if it := l.firstWaiting(); it != nil {
			return it
		}
	}
	it := q.pending.front
	for it.lane.isBusy(it) {
		it = it.next
	}
	return it
}
