package events

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
