package events

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestFlushWaitsForThoseRecordedBeforeItOnly(t *testing.T) {
	q, _ := newTestQueue(1<<20, 3)
	q.push(testItem("a", "a0"))
	q.push(testItem("b", "b0"))
	done, forget := q.flushed()
	defer forget()
	q.push(testItem("c", "c0"))
	q.push(testItem("a", "a1"))
	a0, b0, c0 := taken(q), taken(q), taken(q)
	q.settle(a0, delivered)
	q.settle(c0, delivered) // a later one
	if isDone(done) {
		t.Fatal("done while b0 is pending")
	}
	q.settle(b0, rejected)
	if !isDone(done) {
		t.Fatal("not done, though only a later event is pending")
	}
	if done, _ := q.flushed(); q.length() != 1 || isDone(done) {
		t.Error("done while a1 is pending")
	}
	takeAll(q)
	if done, _ := q.flushed(); !isDone(done) {
		t.Error("not done with an empty queue")
	}
}

// A repeat takes the place of what the flush waits for; that one is settled.
func TestFlushIsNotProlongedByARepeatThatIsRecordedAfterIt(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	q.push(testItem("a", "waits"))
	q.retry(taken(q), time.Hour, true)
	q.push(testItem("b", "busy"))
	it := taken(q)
	done, _ := q.flushed()
	q.push(testItem("a", "waits"))
	if isDone(done) {
		t.Fatal("done while b is being posted")
	}
	q.settle(it, delivered)
	if !isDone(done) {
		t.Error("prolonged by the repeat")
	}

	done, _ = q.flushed()
	q.push(testItem("a", "waits"))
	if !isDone(done) {
		t.Error("the repeat alone does not end it")
	}
}

func TestQueueForgetsThoseWhoWaitNoMore(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	q.push(testItem("a", "a0"))
	stays, _ := q.flushed()
	for range 10 {
		_, forget := q.flushed()
		forget()
		forget()
	}
	if len(q.flushWaiters) != 1 {
		t.Errorf("%d waiters left, want that of the one who waits", len(q.flushWaiters))
	}
	takeAll(q)
	if !isDone(stays) || len(q.flushWaiters) != 0 {
		t.Error("the one who waits is forgotten, or kept")
	}
}

func TestQueueAbandonSettlesEverythingOnce(t *testing.T) {
	q, c := newTestQueue(1<<20, 1)
	for i := range 4 {
		q.push(testItem(fmt.Sprint("object", i%2), fmt.Sprint(i)))
	}
	it := taken(q)
	done, _ := q.flushed()
	q.drain()
	quit := q.stop()
	if lost, over := q.abandon(shutdown); lost.events != 4 || lost.one.message != "3" || lost.outcome != shutdown || over {
		t.Fatalf("abandoned %+v, want 4, the newest of them named", lost)
	}
	if !isDone(done) {
		t.Error("who waited waits still")
	}
	// The attempt that was in flight ends after all.
	if q.settle(it, delivered) {
		t.Error("an outage is over that was not")
	}
	q.retry(it, time.Second, true)
	if isDone(quit) || taken(q) != nil || !isDone(quit) {
		t.Error("a stopped queue handed out an event, or ended without its worker")
	}
	if lost, start := q.push(testItem("late", "late")); start || lost.outcome != shutdown || lost.events != 1 {
		t.Errorf("push after the end: %+v", lost)
	}
	if s := checkSum(t, c); s.outcomes[shutdown] != 5 || s.pending != 0 || s.bytes != 0 || len(c.queues) != 0 {
		t.Errorf("counts %+v", s)
	}
	if q.bytes != 0 || q.length() != 0 || q.lanes != nil || q.in != [places]list[lane, *lane]{} || q.waiting != nil {
		t.Errorf("%d events and %d bytes left", q.size, q.bytes)
	}
	if bytes, oldest := q.held(); bytes != 0 || !oldest.IsZero() {
		t.Errorf("holds %d bytes since %v", bytes, oldest)
	}
}

func TestAQueueWithoutWorkersStopsAtOnce(t *testing.T) {
	q, _ := newTestQueue(1<<20, 1)
	if !isDone(q.stop()) {
		t.Error("not stopped")
	}
}

// What is left when nobody can be asked any more: an announced outage ends with it.
func TestAnOutageEndsWithTheLastEventThatWaitsForIt(t *testing.T) {
	outage := func(q *queue) {
		time.Sleep(time.Millisecond)
		var its []*item
		for i := range downAfter {
			q.push(testItem(fmt.Sprint("object", i), "m"))
			its = append(its, taken(q))
		}
		for i, it := range its {
			v := q.judge(it, ended{began: time.Now(), at: time.Now().Add(outageAfter)})
			if v.outage != (i == downAfter-1) {
				t.Fatalf("failure %d: %+v", i, v)
			}
			q.retry(it, 0, false)
		}
		time.Sleep(outageAfter)
	}
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<20, downAfter)
		outage(q)
		for range downAfter - 1 {
			if q.settle(taken(q), expired) {
				t.Fatal("over while an event waits")
			}
			time.Sleep(2 * time.Second)
		}
		if !q.settle(taken(q), expired) || q.endpoint.down {
			t.Error("not over with the last event")
		}
		outage(q)
		q.stop()
		if lost, over := q.abandon(shutdown); !over || lost.events != downAfter {
			t.Errorf("abandoned %+v, over %v", lost, over)
		}
	})
}

// It would never end: nobody asks any more.
func TestNoOutageBeginsAfterTheEnd(t *testing.T) {
	q, _ := newTestQueue(1<<20, downAfter)
	var its []*item
	for i := range downAfter {
		q.push(testItem(fmt.Sprint("object", i), "m"))
		its = append(its, taken(q))
	}
	q.stop()
	q.abandon(shutdown)
	for _, it := range its {
		if v := q.judge(it, ended{began: time.Now(), at: time.Now().Add(time.Minute)}); v != (verdict{gone: true}) {
			t.Errorf("%+v", v)
		}
	}
}

// At no moment is an event counted as lost that is not yet counted as recorded.
func TestTheSumHoldsWhileEventsAreRecordedAfterTheDrain(t *testing.T) {
	q, c := newTestQueue(1<<20, 1)
	q.drain()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 20_000 {
				q.push(testItem("a", "late"))
			}
		})
	}
	end := make(chan struct{})
	defer wg.Wait()
	go func() { wg.Wait(); close(end) }()
	for !isDone(end) {
		checkSum(t, c)
	}
	if s := checkSum(t, c); s.outcomes[shutdown] != 40_000 || s.pending != 0 {
		t.Errorf("counts %+v", s)
	}
}

// Each part of what names an object counts for its lane, and nothing else does.
func TestWhatNamesAnObjectDecidesItsLane(t *testing.T) {
	base := corev1.ObjectReference{Kind: "K", APIVersion: "g/v1", Namespace: "ns", Name: "n", UID: "u", ResourceVersion: "1", FieldPath: "f"}
	key := func(change func(*corev1.ObjectReference)) laneKey {
		ref := base
		change(&ref)
		return newItem(&call{regarding: &ref, reason: "R", message: "m"}).laneKey()
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

func heapOf() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestQueueChargesWhatTheHeapHolds(t *testing.T) {
	many := map[string]string{}
	for i := range 30 {
		many[fmt.Sprint("a.b/", i)] = "v"
	}
	for name, test := range map[string]struct {
		objects, events int
		message         int
		waits           bool
		annotations     map[string]string
	}{
		"many events about few objects":        {100, 20000, 80, false, map[string]string{"a.b/revision": "main@sha1:3b2a1c", "event.toolkit.fluxcd.io/x": "y"}},
		"one event about each object":          {20000, 20000, 80, false, nil},
		"one event about each object, waiting": {20000, 20000, 80, true, nil},
		"ten events about each object":         {2000, 20000, 80, false, map[string]string{"a.b/revision": "main@sha1:3b2a1c"}},
		"many annotations":                     {100, 5000, 80, false, many},
		"long messages":                        {100, 2000, 3000, false, nil},
		"short messages":                       {1000, 20000, 5, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			q, _ := newTestQueue(1<<30, test.events+1)
			before := heapOf()
			for i := range test.events {
				object := fmt.Sprintf("podinfo-%d", i%test.objects)
				ref := &corev1.ObjectReference{Kind: "Kustomization", APIVersion: "kustomize.toolkit.fluxcd.io/v1",
					Namespace: "flux-system", Name: object, UID: types.UID(fmt.Sprintf("6c1ee2f5-5a3f-4c83-a1a4-%012d", i%test.objects)), ResourceVersion: fmt.Sprint(i)}
				q.push(recordedNow(&call{regarding: ref, annotations: test.annotations, eventtype: "Normal", reason: "Progressing",
					message: fmt.Sprintf("%0*d", test.message, i)}))
				if test.waits {
					q.retry(taken(q), time.Hour, true)
				}
			}
			held := heapOf() - before
			ratio := float64(held) / float64(q.bytes)
			t.Logf("%d events, %d objects: charged %d bytes, heap %d, ratio %.3f; %d bytes an event", test.events, test.objects, q.bytes, held, ratio, q.bytes/test.events)
			if ratio > 1.25 || ratio < 0.8 {
				t.Errorf("charged %d bytes, but the heap holds %d", q.bytes, held)
			}
			runtime.KeepAlive(q)
			q.stop()
		})
	}
}

func TestTheMemoryOfTheLanesIsLetGo(t *testing.T) {
	q, _ := newTestQueue(1<<30, 100_000)
	before := heapOf()
	order := rand.New(rand.NewPCG(1, 2))
	for i := range 30_000 {
		q.push(testItem(fmt.Sprint("object", i), "m"))
		q.retry(taken(q), time.Duration(1+order.IntN(1000))*time.Hour, true)
	}
	q.drain()
	if n := len(takeAll(q)); n != 30_000 || q.lanes != nil || q.waiting != nil {
		t.Errorf("%d events taken, %d lanes left", n, len(q.lanes))
	}
	q.stop()
	if grown := heapOf() - before; grown > 500_000 {
		t.Errorf("%d bytes are left of 30,000 lanes", grown)
	}
	runtime.KeepAlive(q)
}
