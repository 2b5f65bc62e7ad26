package events

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func newTestQueue(limit, workers int) (*queue, *counts) {
	c := newCollector().of("test")
	return newQueue(limit, workers, c), c
}

func testItem(object, message string) *item {
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: object, UID: types.UID("uid-of-" + object)}
	return newItem(time.Now(), ref, nil, nil, "Normal", "Reason", "", message)
}

// checkSum fails unless recorded = outcomes + pending.
func checkSum(t *testing.T, c *counts) snapshot {
	t.Helper()
	s := c.snapshot()
	sum := uint64(s.pending)
	for _, n := range s.outcomes {
		sum += n
	}
	if s.recorded != sum {
		t.Fatalf("recorded %d, but outcomes and pending sum to %d: %+v", s.recorded, sum, s)
	}
	return s
}

func TestQueueKeepsTheOrderOfAnObjectAndTakesLanesInTurn(t *testing.T) {
	q, c := newTestQueue(1<<20, 3)
	for i := range 3 {
		for _, object := range []string{"a", "b"} {
			if p := q.push(testItem(object, fmt.Sprint(object, i))); p.lostEvents != 0 {
				t.Fatalf("lost %+v", p)
			}
		}
	}
	var got []string
	a, b := q.take(), q.take()
	if third := q.take(); third != nil {
		t.Fatalf("handed out %q while both objects are being posted", third.message)
	}
	// b is settled first, so its next event comes before a's.
	got = append(got, a.message, b.message)
	q.settle(b, delivered)
	q.settle(a, delivered)
	for it := q.take(); it != nil; it = q.take() {
		got = append(got, it.message)
		q.settle(it, delivered)
	}
	if want := []string{"a0", "b0", "b1", "a1", "b2", "a2"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if s := checkSum(t, c); s.outcomes[delivered] != 6 || s.pending != 0 || s.bytes != 0 || len(s.queues) != 0 {
		t.Errorf("counts %+v", s)
	}
	if len(q.lanes) != 0 || q.bytes != 0 {
		t.Errorf("%d lanes and %d bytes left", len(q.lanes), q.bytes)
	}
}

func TestQueuePutsAKeptEventBackAtTheHeadOfItsLane(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	for _, m := range []string{"a0", "a1"} {
		q.push(testItem("a", m))
	}
	q.push(testItem("b", "b0"))
	q.putBack(q.take())
	var got []string
	for it := q.take(); it != nil; it = q.take() {
		got = append(got, it.message)
		q.settle(it, delivered)
	}
	if want := []string{"b0", "a0", "a1"}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestQueueAsksForWorkersUpToTheLimit(t *testing.T) {
	q, _ := newTestQueue(1<<20, 2)
	started := 0
	for i := range 5 {
		if q.push(testItem(fmt.Sprint("object", i), "m")).startWorker {
			started++
		}
	}
	if started != 2 {
		t.Errorf("%d workers wanted, limit 2", started)
	}
	one := q.take()
	q.settle(one, delivered)
	if q.push(testItem("object0", "again")).startWorker {
		t.Error("a third worker wanted")
	}
	for it := q.take(); it != nil; it = q.take() {
		q.settle(it, delivered)
	}
	if q.take() != nil || q.workers != 0 {
		t.Fatalf("%d workers left", q.workers)
	}
	if !q.push(testItem("object0", "later")).startWorker {
		t.Error("no worker wanted for the first event after the last worker has ended")
	}
}

func TestQueueStartsNoWorkerForAnEventBehindOneThatIsBeingPosted(t *testing.T) {
	q, _ := newTestQueue(1<<20, 2)
	q.push(testItem("a", "a0"))
	q.take()
	if q.push(testItem("a", "a1")).startWorker {
		t.Error("a worker wanted that would find nothing to do")
	}
}

func TestQueueFoldsAnEventIntoTheLastWaitingOneThatSaysTheSame(t *testing.T) {
	base := func() *item {
		ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "a", UID: "1", ResourceVersion: "7"}
		related := &corev1.ObjectReference{Kind: "Node", Name: "n", ResourceVersion: "3"}
		return newItem(time.Unix(1, 0), ref, related, map[string]string{"v1/token": "x", "k": "v"}, "Normal", "R", "A", "m")
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
			if it := q.take(); test.folded && (!it.recorded.Equal(time.Unix(5, 0)) || it.involved.ResourceVersion != second.involved.ResourceVersion) {
				t.Errorf("time %v, resource version %q: not refreshed", it.recorded, it.involved.ResourceVersion)
			}
		})
	}
}

func TestAnEventThatIsFoldedCountsAsNewWhenTheOldestIsDropped(t *testing.T) {
	cost := testItem("a", "0").bytes + laneBytes
	q, _ := newTestQueue(2*cost, 1)
	q.push(testItem("a", "x"))
	q.push(testItem("b", "y"))
	q.push(testItem("a", "x")) // folded
	if p := q.push(testItem("c", "z")); p.lostEvents != 1 || p.lostFirst.message != "y" {
		t.Errorf("lost %+v, want y, which is older now", p)
	}
	if at, _ := q.oldest(); at.IsZero() {
		t.Error("no oldest event")
	}
}

func TestQueueNeverFoldsIntoAnEventThatIsBeingPostedOrIsNotTheLast(t *testing.T) {
	q, c := newTestQueue(1<<20, 1)
	q.push(testItem("a", "x"))
	q.take()
	q.push(testItem("a", "x")) // x is being posted
	q.push(testItem("a", "y"))
	q.push(testItem("a", "x")) // y came between
	if s := checkSum(t, c); s.outcomes[coalesced] != 0 || s.pending != 4 {
		t.Errorf("counts %+v", s)
	}
}

func TestQueueOverflowDropsTheOldestOfTheSameObjectElseTheOldestOfAll(t *testing.T) {
	cost := testItem("a", "0").bytes
	q, c := newTestQueue(4*cost+2*laneBytes, 1) // four events about two objects
	push := func(object, message string, wantLost ...string) {
		t.Helper()
		p := q.push(testItem(object, message))
		if p.lostEvents != len(wantLost) || len(wantLost) > 0 && (p.lost != overflow || p.lostFirst.message != wantLost[0]) {
			t.Fatalf("push %s lost %d events, first %+v; want %v", message, p.lostEvents, p.lostFirst, wantLost)
		}
		if q.bytes > q.limit {
			t.Fatalf("%d bytes, limit %d", q.bytes, q.limit)
		}
		checkSum(t, c)
	}
	push("b", "1")
	push("a", "2")
	push("a", "3")
	push("a", "4")
	push("a", "5", "2")      // its own oldest, though b has an older one
	push("b", "6", "1")      // the same for b, whose only event it is
	busy := q.take()         // b has kept its turn
	if busy.message != "6" { // taken first, though recorded last
		t.Fatalf("took %s", busy.message)
	}
	push("b", "7", "3")                                                   // not the one being posted: the oldest of all
	push("c", "8", "4", "5")                                              // a new object needs the room of a lane too
	push("d", strings.Repeat("x", 10*cost), strings.Repeat("x", 10*cost)) // fits nowhere, so nothing is dropped for it
	q.settle(busy, delivered)
	var left []string
	for it := q.take(); it != nil; it = q.take() {
		left = append(left, it.message)
		q.settle(it, delivered)
	}
	if want := []string{"8", "7"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	if s := c.snapshot(); s.bytes != 0 || s.pending != 0 {
		t.Errorf("counts %+v", s)
	}
}

func TestQueueNeverDropsTheEventThatIsBeingPosted(t *testing.T) {
	cost := testItem("a", "0").bytes + laneBytes
	q, c := newTestQueue(cost, 1)
	q.push(testItem("a", "0"))
	it := q.take()
	if p := q.push(testItem("a", "1")); p.lostEvents != 1 || p.lostFirst.message != "1" {
		t.Fatalf("lost %+v, want the new event", p)
	}
	if p := q.push(testItem("b", "2")); p.lostEvents != 1 || p.lostFirst.message != "2" {
		t.Fatalf("lost %+v, want the new event", p)
	}
	q.settle(it, delivered)
	if s := checkSum(t, c); s.outcomes[overflow] != 2 || s.outcomes[delivered] != 1 {
		t.Errorf("counts %+v", s)
	}
}

// An event that would not fit if all were dropped costs none of them.
func TestQueueDropsNothingForAnEventThatCannotFit(t *testing.T) {
	q, c := newTestQueue(20_000, 4)
	large := strings.Repeat("x", 14_000)
	q.push(testItem("busy", large))
	q.take() // 14,000 bytes cannot be dropped
	for i := range 5 {
		q.push(testItem(fmt.Sprint("object", i), "m"))
	}
	for _, object := range []string{"new", "object0", "busy"} {
		if p := q.push(testItem(object, large[:7000])); p.lostEvents != 1 || p.lostFirst.message != large[:7000] {
			t.Errorf("%s: %d events lost, want only the new one", object, p.lostEvents)
		}
	}
	if s := checkSum(t, c); s.pending != 6 {
		t.Errorf("%d events pending, want all 6", s.pending)
	}
}

// Each part of what names an object counts for its lane, and nothing else does.
func TestWhatNamesAnObjectDecidesItsLane(t *testing.T) {
	base := corev1.ObjectReference{Kind: "K", APIVersion: "g/v1", Namespace: "ns", Name: "n", UID: "u", ResourceVersion: "1", FieldPath: "f"}
	key := func(change func(*corev1.ObjectReference)) laneKey {
		ref := base
		change(&ref)
		return newItem(time.Now(), &ref, nil, nil, "Normal", "R", "", "m").laneKey()
	}
	same := key(func(*corev1.ObjectReference) {})
	for name, change := range map[string]func(*corev1.ObjectReference){
		"version":          func(r *corev1.ObjectReference) { r.APIVersion = "g/v2" },
		"resource version": func(r *corev1.ObjectReference) { r.ResourceVersion = "2" },
		"field path":       func(r *corev1.ObjectReference) { r.FieldPath = "" },
	} {
		if key(change) != same {
			t.Errorf("another %s is another lane", name)
		}
	}
	for name, change := range map[string]func(*corev1.ObjectReference){
		"kind":      func(r *corev1.ObjectReference) { r.Kind = "L" },
		"group":     func(r *corev1.ObjectReference) { r.APIVersion = "h/v1" },
		"no group":  func(r *corev1.ObjectReference) { r.APIVersion = "v1" },
		"namespace": func(r *corev1.ObjectReference) { r.Namespace = "" },
		"name":      func(r *corev1.ObjectReference) { r.Name = "m" },
		"UID":       func(r *corev1.ObjectReference) { r.UID = "v" },
		"shifted":   func(r *corev1.ObjectReference) { r.Namespace, r.Name = "nsn", "" },
	} {
		if key(change) == same {
			t.Errorf("another %s is the same lane", name)
		}
	}
}

func TestQueueFoldsWithinItsLimit(t *testing.T) {
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "a"}
	q, c := newTestQueue(2000, 1)
	q.push(newItem(time.Unix(1, 0), ref, nil, nil, "Normal", "R", "", "m"))
	ref.ResourceVersion = strings.Repeat("7", 10_000)
	q.push(newItem(time.Unix(5, 0), ref, nil, nil, "Normal", "R", "", "m"))
	if s := checkSum(t, c); s.outcomes[coalesced] != 1 || s.bytes > 2000 {
		t.Errorf("counts %+v", s)
	}
	if it := q.take(); !it.recorded.Equal(time.Unix(5, 0)) {
		t.Errorf("time %v", it.recorded)
	}
}

func TestTheMapOfLanesShrinks(t *testing.T) {
	q, _ := newTestQueue(1<<30, 1)
	q.push(testItem("stuck", "m"))
	stuck := q.take()
	before := heapOf()
	for range 3 {
		for i := range 30_000 {
			q.push(testItem(fmt.Sprint("object", i), "m"))
		}
		for it := q.take(); it != nil; it = q.take() {
			q.settle(it, delivered)
		}
	}
	if grown := heapOf() - before; grown > 500_000 {
		t.Errorf("%d bytes are left of 30,000 lanes", grown)
	}
	q.settle(stuck, delivered)
	runtime.KeepAlive(q)
}

func heapOf() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestQueueDrainedWaitsForEarlierEventsOnly(t *testing.T) {
	q, _ := newTestQueue(1<<20, 3)
	q.push(testItem("a", "a0"))
	q.push(testItem("b", "b0"))
	done, forget := q.drained()
	defer forget()
	q.push(testItem("c", "c0"))
	q.push(testItem("a", "a1"))
	a0, b0, c0 := q.take(), q.take(), q.take()
	q.settle(a0, delivered)
	q.settle(c0, delivered) // a later one
	select {
	case <-done:
		t.Fatal("done while b0 is pending")
	default:
	}
	it := b0
	q.settle(it, rejected)
	select {
	case <-done:
	default:
		t.Fatalf("not done after %q, though only later events are pending", it.message)
	}
	if done, _ := q.drained(); q.length() != 1 {
		t.Fatalf("length %d", q.length())
	} else {
		select {
		case <-done:
			t.Error("done while a1 is pending")
		default:
		}
	}
}

func TestQueueForgetsThoseWhoWaitNoMore(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	q.push(testItem("a", "a0"))
	for range 10 {
		_, forget := q.drained()
		forget()
		forget()
	}
	if len(q.waiters) != 0 {
		t.Errorf("%d waiters left", len(q.waiters))
	}
}

func TestQueueAbandonSettlesEverythingOnce(t *testing.T) {
	q, c := newTestQueue(1<<20, 1)
	for i := range 4 {
		q.push(testItem(fmt.Sprint("object", i%2), fmt.Sprint(i)))
	}
	it := q.take()
	done, _ := q.drained()
	q.close()
	quit := q.stop()
	if n, first := q.abandon(); n != 4 || first == nil {
		t.Fatalf("abandoned %d, want 4", n)
	}
	<-done
	q.settle(it, delivered) // counts no more, see below
	q.putBack(it)
	if q.take() != nil {
		t.Error("a stopped queue handed out an event")
	}
	<-quit
	p := q.push(testItem("late", "late"))
	if p.startWorker || p.lost != shutdown || p.lostEvents != 1 {
		t.Errorf("push after the end: %+v", p)
	}
	if s := checkSum(t, c); s.outcomes[shutdown] != 5 || s.pending != 0 || s.bytes != 0 {
		t.Errorf("counts %+v", s)
	}
}

// The queue against a plain model of it, over random operations.
func TestQueueBehavesAsItsModel(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		q, c := newTestQueue(6000, 3)
		type event struct{ object, message string }
		lanes := map[string][]event{} // what must be handed out next
		busy := map[string]*item{}
		n := 0
		for range 300 {
			object := fmt.Sprint("object", rnd.IntN(5))
			switch op := rnd.IntN(10); {
			case op < 5:
				n++
				e := event{object, fmt.Sprint(n, strings.Repeat("-", rnd.IntN(300)))}
				p := q.push(testItem(e.object, e.message))
				lost := p.lostEvents
				waiting := func(object string) []event {
					if busy[object] != nil {
						return lanes[object][1:]
					}
					return lanes[object]
				}
				for ; lost > 0; lost-- {
					victim := ""
					if len(waiting(object)) > 0 {
						victim = object
					} else {
						oldest := n
						for o := range lanes {
							if w := waiting(o); len(w) > 0 {
								var at int
								_, _ = fmt.Sscan(strings.TrimRight(w[0].message, "-"), &at)
								if at < oldest {
									oldest, victim = at, o
								}
							}
						}
					}
					if victim == "" { // the new one itself
						break
					}
					at := len(lanes[victim]) - len(waiting(victim))
					lanes[victim] = slices.Delete(lanes[victim], at, at+1)
				}
				if lost == 0 {
					lanes[object] = append(lanes[object], e)
				}
			case op < 7:
				if len(busy) >= 3 || q.ready.front == nil {
					continue
				}
				it := q.take()
				o := it.involved.Name
				if busy[o] != nil || lanes[o][0].message != it.message {
					t.Fatalf("seed %d: handed out %q of %s, want %+v", seed, it.message, o, lanes[o])
				}
				busy[o] = it
			default:
				for o, it := range busy {
					delete(busy, o)
					if rnd.IntN(3) == 0 {
						q.putBack(it)
					} else {
						q.settle(it, delivered)
						lanes[o] = lanes[o][1:]
					}
					break
				}
			}
			want, events, ready := 0, 0, 0
			for o, l := range lanes {
				want += len(l)
				if len(l) > 0 && busy[o] == nil {
					ready++
				}
			}
			for l := q.ready.front; l != nil; l = l.next {
				ready--
			}
			if ready != 0 {
				t.Fatalf("seed %d: %d lanes too few in the ready list", seed, ready)
			}
			for it := q.pending.front; it != nil; it = it.next {
				events++
			}
			if s := checkSum(t, c); s.pending != want || q.size != want || events != want || s.bytes != q.bytes || q.bytes > q.limit {
				t.Fatalf("seed %d: %d pending, size %d, %d in the list, want %d; %d bytes, limit %d", seed, s.pending, q.size, events, want, q.bytes, q.limit)
			}
		}
	}
}

func TestQueueChargesWhatTheHeapHolds(t *testing.T) {
	for name, test := range map[string]struct {
		objects, events int
		message         int
		annotations     map[string]string
	}{
		"many events about few objects": {100, 20000, 80, map[string]string{"a.b/revision": "main@sha1:3b2a1c", "event.toolkit.fluxcd.io/x": "y"}},
		"one event about each object":   {20000, 20000, 80, nil},
		"ten events about each object":  {2000, 20000, 80, map[string]string{"a.b/revision": "main@sha1:3b2a1c"}},
		"long messages":                 {100, 2000, 3000, nil},
		"short messages":                {1000, 20000, 5, nil},
	} {
		t.Run(name, func(t *testing.T) {
			q, _ := newTestQueue(1<<30, 8)
			before := heapOf()
			for i := range test.events {
				object := fmt.Sprintf("podinfo-%d", i%test.objects)
				ref := &corev1.ObjectReference{Kind: "Kustomization", APIVersion: "kustomize.toolkit.fluxcd.io/v1",
					Namespace: "flux-system", Name: object, UID: types.UID(fmt.Sprintf("6c1ee2f5-5a3f-4c83-a1a4-%012d", i%test.objects)), ResourceVersion: fmt.Sprint(i)}
				q.push(newItem(time.Now(), ref, nil, test.annotations, "Normal", "Progressing", "", fmt.Sprintf("%0*d", test.message, i)))
			}
			held := heapOf() - before
			ratio := float64(held) / float64(q.bytes)
			t.Logf("%d events, %d objects: charged %d bytes, heap %d, ratio %.3f; %d bytes an event", test.events, test.objects, q.bytes, held, ratio, q.bytes/test.events)
			if ratio > 1.25 || ratio < 0.8 {
				t.Errorf("charged %d bytes, but the heap holds %d", q.bytes, held)
			}
			runtime.KeepAlive(q)
		})
	}
}
