package events

import (
	"container/heap"
	"time"
	"unsafe"
)

// laneKey stands for an object: events about different objects may overtake each
// other, events about one object may not. It is a hash, so that a lane costs
// little memory. Should two objects have the same, they share a lane.
type laneKey uint64

// laneBytes is the memory of a lane: its struct and its place in the map, which
// is between 7/16 and 7/8 full, and in the heap of the waiting ones.
const laneBytes = int(unsafe.Sizeof(lane{})) + int(unsafe.Sizeof(laneKey(0))+unsafe.Sizeof((*lane)(nil)))*2

// lane holds the pending events of one object, first in, first out. The queue
// says which places there are.
type lane struct {
	links[lane]
	key        laneKey
	head, tail *item
	place      place
	wasFailed  bool          // while busy: the head had failed before
	until      time.Duration // while waiting: since the queue began; 16 bytes less than a time.Time
	index      int           // in the heap, while waiting
}

// place is where a lane is.
type place uint8

const (
	nowhere place = iota
	fresh
	failed
	waiting
	busy
	places int = iota
)

// class is the place of the lane when it is ready.
func (l *lane) class() place {
	if l.head != nil && l.head.suspect {
		return failed
	}
	return fresh
}

// isBusy reports whether the event is being posted.
func (l *lane) isBusy(it *item) bool { return l.place == busy && l.head == it }

// firstWaiting is the event of the lane that is not being posted and will be
// next, or nil.
func (l *lane) firstWaiting() *item {
	if l.place == busy {
		return l.head.behind
	}
	return l.head
}

// due is when the wait of a waiting lane ends.
func (q *queue) due(l *lane) time.Time { return q.began.Add(l.until) }

func (q *queue) addLaneLocked(key laneKey) *lane {
	if q.lanes == nil {
		q.lanes = make(map[laneKey]*lane)
	}
	l := &lane{key: key}
	q.lanes[key] = l
	q.resizeLocked(0, laneBytes)
	return l
}

func (q *queue) dropLaneLocked(l *lane) {
	q.moveLocked(l, nowhere)
	delete(q.lanes, l.key)
	q.resizeLocked(0, -laneBytes)
	if len(q.lanes) == 0 {
		q.lanes, q.waiting = nil, nil // they never shrink by themselves
	}
}

// readyLocked ends all waits.
func (q *queue) readyLocked() {
	lanes := q.waiting
	q.waiting = nil
	for _, l := range lanes {
		l.place = nowhere
		q.moveLocked(l, l.class())
	}
}

// reclassLocked keeps a ready lane in the list of its head, and makes a waiting one
// ready, since the wait was that of another event. A lane that need not move
// keeps its turn.
func (q *queue) reclassLocked(l *lane) {
	if l.head != nil && l.place != busy && l.place != l.class() {
		q.moveLocked(l, l.class())
	}
}

// moveLocked puts a lane into a place, behind those that are there.
func (q *queue) moveLocked(l *lane, to place) {
	switch l.place {
	case nowhere:
	case waiting:
		heap.Remove(&q.waiting, l.index)
	default:
		q.in[l.place].remove(l)
		if l.place == busy && l.wasFailed {
			q.failedBusy--
		}
	}
	l.place = to
	switch to {
	case nowhere:
	case waiting:
		heap.Push(&q.waiting, l)
	default:
		q.in[to].pushBack(l)
		if l.wasFailed = to == busy && l.head.suspect; l.wasFailed {
			q.failedBusy++
		}
	}
}

// laneHeap has the lane in front that has to wait for the shortest time.
type laneHeap []*lane

func (h laneHeap) Len() int           { return len(h) }
func (h laneHeap) Less(i, j int) bool { return h[i].until < h[j].until }

func (h laneHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *laneHeap) Push(l any) {
	l.(*lane).index = len(*h)
	*h = append(*h, l.(*lane))
}

func (h *laneHeap) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return l
}

// list is a doubly linked list whose links are in its elements, so that adding
// and removing allocate nothing. An element is in at most one list of its type.
type list[E any, P interface {
	*E
	link() *links[E]
}] struct{ front, back *E }

type links[E any] struct{ prev, next *E }

func (l *list[E, P]) pushBack(e *E) {
	*P(e).link() = links[E]{prev: l.back}
	if l.back == nil {
		l.front = e
	} else {
		P(l.back).link().next = e
	}
	l.back = e
}

func (l *list[E, P]) remove(e *E) {
	at := P(e).link()
	if at.prev == nil {
		l.front = at.next
	} else {
		P(at.prev).link().next = at.next
	}
	if at.next == nil {
		l.back = at.prev
	} else {
		P(at.next).link().prev = at.prev
	}
	*at = links[E]{}
}

func (l *lane) link() *links[lane]  { return &l.links }
func (it *item) link() *links[item] { return &it.links }
