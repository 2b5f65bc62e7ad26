package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func newTestQueue(limit, workers int) (*queue, *counts) {
	c := newCollector().of("test")
	o := &options{queueBytes: limit, concurrency: workers, maxAge: time.Hour, retryMax: 7}
	return newQueue(o, c, 7, func() {}), c
}

func testItem(object, message string) *item {
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: object, UID: types.UID("uid-of-" + object)}
	return recordedNow(&call{regarding: ref, eventtype: "Normal", reason: "Reason", message: message})
}

func recordedNow(c *call) *item {
	it := newItem(c)
	it.recorded = time.Now()
	return it
}

// taken is the next event, or nil.
func taken(q *queue) *item {
	it, _ := q.take()
	return it
}

// takeAll delivers all that can be taken, and returns the messages.
func takeAll(q *queue) (got []string) {
	for it := taken(q); it != nil; it = taken(q) {
		got = append(got, it.message)
		q.settle(it, delivered)
	}
	return got
}

// failing has the event failed before.
func failing(it *item) *item {
	it.suspect = true
	return it
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// checkSum fails unless recorded = outcomes + pending.
func checkSum(t *testing.T, c *counts) snapshot {
	t.Helper()
	s := c.snapshot()
	sum := s.pending
	for _, n := range s.outcomes {
		sum += n
	}
	if s.recorded != sum || int64(s.pending) < 0 {
		t.Fatalf("recorded %d, but outcomes and pending sum to %d: %+v", s.recorded, sum, s)
	}
	return s
}

func wantMessages(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestQueueKeepsTheOrderOfAnObjectAndTakesLanesInTurn(t *testing.T) {
	q, c := newTestQueue(1<<20, 3)
	for i := range 3 {
		for _, object := range []string{"a", "b"} {
			if lost, _ := q.push(testItem(object, fmt.Sprint(object, i))); lost.events != 0 {
				t.Fatalf("lost %+v", lost)
			}
		}
	}
	a, b := taken(q), taken(q)
	if third := taken(q); third != nil {
		t.Fatalf("handed out %q while both objects are being posted", third.message)
	}
	wantMessages(t, []string{a.message, b.message}, "a0", "b0")
	// b is settled first, so its next event comes before a's.
	q.settle(b, delivered)
	q.settle(a, delivered)
	wantMessages(t, takeAll(q), "b1", "a1", "b2", "a2")
	if s := checkSum(t, c); s.outcomes[delivered] != 6 || s.pending != 0 || s.bytes != 0 || len(c.queues) != 0 {
		t.Errorf("counts %+v", s)
	}
	if q.bytes != 0 || q.lanes != nil {
		t.Errorf("%d lanes and %d bytes left", len(q.lanes), q.bytes)
	}
}

func TestAnEventThatIsTriedAgainStaysAtTheHeadOfItsLane(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	q.push(testItem("a", "a0"))
	q.push(testItem("a", "a1"))
	q.push(testItem("b", "b0"))
	q.retry(taken(q), 0, false)
	wantMessages(t, takeAll(q), "b0", "a0", "a1")
}

func TestEachEventHasAKeyThatStaysAndIsItsOwn(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	q.push(testItem("a", "a0"))
	q.push(testItem("b", "b0"))
	var keys []string
	for range 4 {
		it := taken(q)
		keys = append(keys, it.key.String())
		q.retry(it, 0, false)
	}
	wantMessages(t, keys, "7-1", "7-2", "7-1", "7-2")
}

// Or a short string would keep a large one alive that it was cut from.
func TestAnEventHoldsNoStringOfItsCaller(t *testing.T) {
	all := "kind namespace name uid version resource field related reason action message key value"
	next := func() (word string) {
		word, all, _ = strings.Cut(all, " ")
		return word
	}
	from := unsafe.StringData(all)
	to := len(all)
	c := call{regarding: &corev1.ObjectReference{Kind: next(), Namespace: next(), Name: next(), UID: types.UID(next()),
		APIVersion: next(), ResourceVersion: next(), FieldPath: next()}, related: &corev1.ObjectReference{Name: next()},
		reason: next(), action: next(), message: next(), annotations: map[string]string{next(): next()}}
	it := newItem(&c)
	held := append(referenceStrings(nil, &it.involved), &it.related.Name, &it.reason, &it.action, &it.message,
		&it.metadata[0].key, &it.metadata[0].value)
	for _, s := range held {
		at := uintptr(unsafe.Pointer(unsafe.StringData(*s))) - uintptr(unsafe.Pointer(from))
		if *s == "" || at < uintptr(to) {
			t.Errorf("%q is not a copy", *s)
		}
	}
}

func TestTheBufferOfALargeEventIsNotKept(t *testing.T) {
	testItem("a", strings.Repeat("x", 4*maxScratch))
	if kept := cap(*scratch.Get().(*[]byte)); kept > maxScratch {
		t.Errorf("%d bytes are kept", kept)
	}
}

func TestQueueFoldsAnEventIntoTheLastWaitingOneThatSaysTheSame(t *testing.T) {
	base := func() *item {
		ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "a", UID: "1", ResourceVersion: "7"}
		related := &corev1.ObjectReference{Kind: "Node", Name: "n", ResourceVersion: "3"}
		return recordedNow(&call{regarding: ref, related: related, eventtype: "Normal", reason: "R", action: "A", message: "m",
			annotations: map[string]string{"v1/token": "x", "k": "v"}})
	}
	for name, test := range map[string]struct {
		change func(*notification)
		folded bool
	}{
		"nothing but the time":      {func(n *notification) {}, true},
		"resource version":          {func(n *notification) { n.involved.ResourceVersion = "8" }, true},
		"resource version, related": {func(n *notification) { n.related.ResourceVersion = "4" }, true},
		"message":                   {func(n *notification) { n.message = "other" }, false},
		"reason":                    {func(n *notification) { n.reason = "other" }, false},
		"action":                    {func(n *notification) { n.action = "other" }, false},
		"severity":                  {func(n *notification) { n.warning = true }, false},
		"token":                     {func(n *notification) { n.metadata[1].value = "y" }, false},
		"metadata key":              {func(n *notification) { n.metadata[0].key = "other" }, false},
		"metadata missing":          {func(n *notification) { n.metadata = n.metadata[:1] }, false},
		"API version of the object": {func(n *notification) { n.involved.APIVersion = "v2" }, false},
		"field path":                {func(n *notification) { n.involved.FieldPath = "spec" }, false},
		"related object":            {func(n *notification) { n.related.Name = "other" }, false},
		"no related object":         {func(n *notification) { n.related = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			q, c := newTestQueue(1<<20, 1)
			q.push(base())
			second := base()
			second.recorded = time.Unix(5, 0)
			test.change(&second.notification)
			q.push(second)
			if s := checkSum(t, c); (s.outcomes[coalesced] == 1) != test.folded {
				t.Fatalf("coalesced %d, want folded %v", s.outcomes[coalesced], test.folded)
			}
			if it := taken(q); test.folded && (!it.recorded.Equal(time.Unix(5, 0)) || it.involved.ResourceVersion != second.involved.ResourceVersion) {
				t.Errorf("time %v, resource version %q: not refreshed", it.recorded, it.involved.ResourceVersion)
			}
		})
	}
}

// What the event has been through stays, or a repeated event would never be given
// up. For the endpoint it is a new one.
func TestAFoldKeepsTheHistoryAndIsANewEventOtherwise(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	q.push(testItem("a", "x"))
	it := taken(q)
	it.history = history{attempts: 3, strikes: 2, suspect: true, tried: 9, served: 8, unanswered: true}
	was := it.history
	q.retry(it, time.Minute, false)
	q.push(testItem("b", "y"))
	q.push(testItem("a", "x"))
	if it.history != was || it.lane.place != waiting || it.seq != 3 || it.key.String() != "7-3" || q.pending.back != it {
		t.Errorf("after the fold: %+v, seq %d, key %v", it.history, it.seq, it.key)
	}
}

func TestAnEventThatIsFoldedCountsAsNewWhenTheOldestIsDropped(t *testing.T) {
	cost := testItem("a", "0").bytes + laneBytes
	q, _ := newTestQueue(2*cost, 1)
	q.push(testItem("a", "x"))
	q.push(testItem("b", "y"))
	q.push(testItem("a", "x")) // folded
	if lost, _ := q.push(testItem("c", "z")); lost.events != 1 || lost.one.message != "y" {
		t.Errorf("lost %+v, want y, which is older now", lost)
	}
	if _, oldest := q.held(); !oldest.Equal(q.pending.front.recorded) {
		t.Errorf("the oldest event is of %v", oldest)
	}
}

func TestQueueNeverFoldsIntoAnEventThatIsBeingPostedOrIsNotTheLast(t *testing.T) {
	q, c := newTestQueue(1<<20, 1)
	q.push(testItem("a", "x"))
	taken(q)
	q.push(testItem("a", "x")) // x is being posted
	q.push(testItem("a", "y"))
	q.push(testItem("a", "x")) // y came between
	q.push(testItem("a", "x")) // folded: the object is being posted, but not this event
	if s := checkSum(t, c); s.outcomes[coalesced] != 1 || s.pending != 4 {
		t.Errorf("counts %+v", s)
	}
}

func TestQueueFoldsUpToItsExactLimit(t *testing.T) {
	longer := func(by int) *item {
		it := testItem("a", "m")
		it.bytes += by
		return it
	}
	for by, want := range map[int]outcome{0: coalesced, 100: coalesced, 101: overflow} {
		q, c := newTestQueue(testItem("a", "m").bytes+100+laneBytes, 1)
		q.push(testItem("a", "m"))
		lost, _ := q.push(longer(by))
		s := checkSum(t, c)
		if s.outcomes[want] != 1 || (lost.events == 1) != (want == overflow) || s.bytes > q.limit {
			t.Errorf("%d bytes longer: %+v, want %v", by, s.outcomes, want)
		}
		if want == coalesced && (s.pending != 1 || s.bytes != testItem("a", "m").bytes+by+laneBytes) {
			t.Errorf("%d bytes longer: %d bytes for %d events", by, s.bytes, s.pending)
		}
	}
}

func TestQueueOverflowDropsTheOldestOfTheSameObjectElseTheOldestOfAll(t *testing.T) {
	cost := testItem("a", "0").bytes
	q, c := newTestQueue(4*cost+2*laneBytes, 1) // four events about two objects
	push := func(object, message string, events int, one string) {
		t.Helper()
		lost, _ := q.push(testItem(object, message))
		if events == 0 && lost != (loss{}) {
			t.Fatalf("push %s lost nothing, but says %+v", message, lost)
		}
		if lost.events != events || events > 0 && (lost.outcome != overflow || lost.cause != errQueueFull || lost.one.message != one) {
			t.Fatalf("push %s lost %+v; want %d, %q", message, lost, events, one)
		}
		if q.bytes > q.limit {
			t.Fatalf("%d bytes, limit %d", q.bytes, q.limit)
		}
		checkSum(t, c)
	}
	push("b", "1", 0, "")
	push("a", "2", 0, "")
	push("a", "3", 0, "")
	push("a", "4", 0, "")
	push("a", "5", 1, "2") // its own oldest, though b has an older one
	push("b", "6", 1, "1") // the same for b, whose only event it is
	it := taken(q)         // b has kept its turn
	if it.message != "6" { // taken first, though recorded last
		t.Fatalf("took %s", it.message)
	}
	push("b", "7", 1, "3") // not the one being posted: the oldest of all
	push("c", "8", 2, "5") // a new object needs the room of a lane too: 4 and 5
	huge := strings.Repeat("x", 10*cost)
	push("d", huge, 1, huge) // fits nowhere, so nothing is dropped for it
	q.settle(it, delivered)
	wantMessages(t, takeAll(q), "8", "7")
	if s := c.snapshot(); s.bytes != 0 || s.pending != 0 {
		t.Errorf("counts %+v", s)
	}
}

func TestQueueNeverDropsTheEventThatIsBeingPosted(t *testing.T) {
	cost := testItem("a", "0").bytes + laneBytes
	q, c := newTestQueue(cost, 1)
	q.push(testItem("a", "0"))
	it := taken(q)
	for _, object := range []string{"a", "b"} {
		if lost, _ := q.push(testItem(object, "1")); lost.events != 1 || lost.one.message != "1" {
			t.Fatalf("lost %+v, want the new event", lost)
		}
	}
	q.settle(it, delivered)
	if s := checkSum(t, c); s.outcomes[overflow] != 2 || s.outcomes[delivered] != 1 {
		t.Errorf("counts %+v", s)
	}
}

// What was behind the event that is being posted goes, whether or not it is the
// last.
func TestQueueDropsWhatWaitsBehindTheEventThatIsBeingPosted(t *testing.T) {
	cost := testItem("a", "0").bytes
	for behind := range 3 {
		q, _ := newTestQueue((2+behind)*cost+laneBytes, 1)
		for i := range 2 + behind {
			q.push(testItem("a", fmt.Sprint(i)))
		}
		it := taken(q)
		if lost, _ := q.push(testItem("a", "n")); lost.events != 1 || lost.one.message != "1" {
			t.Errorf("lost %+v", lost)
		}
		q.settle(it, delivered)
		wantMessages(t, takeAll(q), append([]string{"2", "3"}[:behind], "n")...)
	}
}

// An event that would not fit if all were dropped costs none of them; one that just
// fits costs them all. The lane that it goes to is not to be had.
func TestQueueDropsNothingForAnEventThatCannotFit(t *testing.T) {
	pinned := testItem("busy", "m").bytes + laneBytes
	const limit = 20_000
	for _, test := range []struct {
		object string
		most   int // what fits beside the event that is being posted
	}{
		{"busy", limit - pinned},
		{"object0", limit - pinned - laneBytes},
		{"new", limit - pinned - laneBytes},
	} {
		for over := range 2 {
			q, c := newTestQueue(limit, 4)
			q.push(testItem("busy", "m"))
			taken(q)
			q.push(testItem("busy", "behind"))
			for i := range 5 {
				q.push(testItem(fmt.Sprint("object", i), "m"))
			}
			it := testItem(test.object, "large")
			it.bytes = test.most + over
			lost, start := q.push(it)
			if over == 1 {
				if lost.events != 1 || lost.one.message != "large" || lost.outcome != overflow || start {
					t.Errorf("%s: lost %+v, want only the new event", test.object, lost)
				}
				if s := checkSum(t, c); s.pending != 7 {
					t.Errorf("%s: %d events pending, want all 7", test.object, s.pending)
				}
			} else if s := checkSum(t, c); lost.events != 6 || s.pending != 2 || s.bytes != limit {
				t.Errorf("%s: lost %+v, %d events and %d bytes left", test.object, lost, s.pending, s.bytes)
			}
		}
	}
}

func TestOneGiantEventDoesNotEmptyTheQueue(t *testing.T) {
	for size, want := range map[int]error{maxEventBytes: errQueueFull, maxEventBytes + 1: errTooLarge} {
		q, c := newTestQueue(4<<20, 1)
		for q.bytes < 2<<20 {
			q.push(testItem("a", fmt.Sprint(q.size)))
		}
		before := q.size
		it := testItem("b", "giant")
		it.bytes = size
		lost, start := q.push(it)
		switch s := checkSum(t, c); {
		case lost.cause != want || lost.outcome != overflow:
			t.Errorf("%d bytes: lost %+v, want %v", size, lost, want)
		case want == errTooLarge && (lost.events != 1 || lost.one.message != "giant" || q.size != before || s.outcomes[overflow] != 1 || start):
			t.Errorf("%d events lost", lost.events)
		case want == errQueueFull && (q.pending.back != it || q.size == before):
			t.Error("an event that is just small enough was not taken")
		}
	}
	if !strings.Contains(errTooLarge.Error(), "3 MiB") {
		t.Error(errTooLarge)
	}
}
