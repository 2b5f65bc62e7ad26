package events

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// bringDown has four attempts fail, of events that were taken.
func bringDown(q *queue, its ...*item) {
	time.Sleep(time.Millisecond) // begun after the last served one
	for i := 0; !q.endpoint.down; i++ {
		q.judge(its[i%len(its)], ended{began: time.Now(), at: time.Now()})
	}
}

func TestQueueAsksForWorkersUpToTheLimit(t *testing.T) {
	q, _ := newTestQueue(1<<20, 2)
	started := 0
	for i := range 5 {
		if _, start := q.push(testItem(fmt.Sprint("object", i), "m")); start {
			started++
		}
	}
	if started != 2 {
		t.Errorf("%d workers wanted, limit 2", started)
	}
	q.settle(taken(q), delivered)
	if _, start := q.push(testItem("object0", "again")); start {
		t.Error("a third worker wanted")
	}
	takeAll(q)
	taken(q)
	if q.workers != 0 {
		t.Fatalf("%d workers left", q.workers)
	}
	if _, start := q.push(testItem("object0", "later")); !start {
		t.Error("no worker wanted for the first event after the last worker has ended")
	}
}

func TestQueueStartsNoWorkerForAnEventBehindOneThatIsBeingPosted(t *testing.T) {
	q, _ := newTestQueue(1<<20, 2)
	q.push(testItem("a", "a0"))
	taken(q)
	if _, start := q.push(testItem("a", "a1")); start {
		t.Error("a worker wanted that would find nothing to do")
	}
}

// Whoever makes lanes ready is one worker; the first that takes one calls the next.
func TestAWorkerCallsTheNextIfThereIsWorkForIt(t *testing.T) {
	q, _ := newTestQueue(1<<20, 3)
	for i := range 4 {
		q.push(testItem(fmt.Sprint("object", i), "m"))
	}
	for range 3 {
		q.retry(taken(q), time.Second, false)
	}
	q.settle(taken(q), delivered)
	for q.workers > 0 {
		taken(q)
	}
	if !q.drain() {
		t.Fatal("nobody comes for the lanes that waited")
	}
	for i, want := range []bool{true, true, false} {
		if it, another := q.take(); it == nil || another != want {
			t.Errorf("take %d: %v, another worker wanted: %v", i, it, another)
		}
	}
}

func TestFreshAndFailedLanesTakeTurns(t *testing.T) {
	q, _ := newTestQueue(1<<20, 8)
	for i := range 3 {
		q.push(failing(testItem("bad"+fmt.Sprint(i), fmt.Sprint("bad", i))))
		q.push(testItem("good"+fmt.Sprint(i), fmt.Sprint("good", i)))
	}
	wantMessages(t, takeAll(q), "good0", "bad0", "good1", "bad1", "good2", "bad2")

	// Of one kind there is nothing: the other goes on.
	for i := range 2 {
		q.push(failing(testItem("bad"+fmt.Sprint(i), fmt.Sprint("bad", i))))
	}
	wantMessages(t, takeAll(q), "bad0", "bad1")
	for i := range 2 {
		q.push(testItem("good"+fmt.Sprint(i), fmt.Sprint("good", i)))
	}
	wantMessages(t, takeAll(q), "good0", "good1")
}

func TestFailedLanesHaveAtMostHalfOfTheWorkers(t *testing.T) {
	for workers, most := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 7: 3, 32: 16} {
		q, _ := newTestQueue(1<<20, workers)
		for i := range 40 {
			q.push(failing(testItem("bad"+fmt.Sprint(i), "m")))
		}
		busy := 0
		var last *item
		for it := taken(q); it != nil; it = taken(q) {
			last = it
			busy++
		}
		if busy != most {
			t.Errorf("%d of %d workers for failed lanes, want %d", busy, workers, most)
		}
		q.push(testItem("good", "good"))
		if it := taken(q); it == nil || it.message != "good" {
			t.Errorf("the fresh event does not pass: %v", it)
		}
		// One that ends makes room for another.
		q.settle(last, delivered)
		if it := taken(q); it == nil || taken(q) != nil {
			t.Error("not exactly one more")
		}
	}
}

// Probes are few, and each lane must be able to be the one that finds it is back.
func TestWhileDownFailedLanesMayHaveAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<20, 2)
		for i := range 3 {
			q.push(failing(testItem(fmt.Sprint("bad", i), "m")))
		}
		first := taken(q)
		if taken(q) != nil {
			t.Fatal("more than half")
		}
		bringDown(q, first)
		if taken(q) == nil {
			t.Error("no probe beside the attempt that hangs")
		}
	})
}

func TestAnEventThatIsRetriedWaitsInTheListOfFailedOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<20, 4)
		for _, object := range []string{"a", "b", "c"} {
			q.push(testItem(object, object))
		}
		a := taken(q)
		q.judge(a, ended{began: time.Now(), at: time.Now()})
		q.retry(a, time.Second, false)
		time.Sleep(time.Second)
		wantMessages(t, takeAll(q), "a", "b", "c") // the turn is that of the failed
	})
}

// A lane that is due but lacks a worker would have the timer fire without end.
func TestAnEventThatIsTooOldNeedsNoAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<20, 4)
		old := testItem("old", "old")
		q.push(old)
		q.retry(taken(q), 2*time.Hour, true)
		time.Sleep(time.Hour - time.Millisecond)
		q.push(testItem("other", "other"))
		other := taken(q)
		bringDown(q, other) // a millisecond later
		q.retry(other, 0, false)
		q.endpoint.nextProbe = time.Now().Add(time.Second)
		if it := taken(q); it != nil {
			t.Fatalf("took %q, of exactly the maximum age, between two probes", it.message)
		}
		q.push(testItem("old", "behind"))
		// Of the lane that waits, while down and between two probes, and although
		// failed lanes have their share.
		q.failedBusy += 2
		q.retry(old, 0, false)
		q.failedBusy -= 2
		time.Sleep(time.Nanosecond)
		before := q.endpoint.nextProbe
		it := taken(q)
		if it != old || !q.endpoint.nextProbe.Equal(before) {
			t.Fatalf("took %v, the next probe is at %v, not %v", it, q.endpoint.nextProbe, before)
		}
		q.settle(it, expired)
		if taken(q) != nil {
			t.Error("the event behind it went too")
		}
		if it := q.pending.front; it.lane.place != failed || q.in[fresh].front.head.message != "behind" {
			t.Error("the lanes are in the wrong places")
		}
	})
}

func TestWhatIsBehindAnEventThatIsBeingPostedIsNotTakenForItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<20, 4)
		q.push(testItem("a", "a0"))
		taken(q)
		q.push(testItem("a", "a1"))
		time.Sleep(2 * time.Hour)
		if it := taken(q); it != nil {
			t.Errorf("took %q", it.message)
		}
	})
}

func TestDroppingTheHeadOfALaneDoesNotCostItItsTurn(t *testing.T) {
	cost := testItem("a", "a0").bytes
	q, _ := newTestQueue(4*cost+3*laneBytes, 1)
	for _, object := range []string{"a", "b", "c"} {
		q.push(testItem(object, object+"0"))
	}
	q.push(testItem("a", "a1"))
	if lost, _ := q.push(testItem("a", "a2")); lost.events != 1 || lost.one.message != "a0" {
		t.Fatalf("lost %+v", lost)
	}
	wantMessages(t, takeAll(q), "a1", "b0", "c0", "a2")
}

// The first probe starts at once; one second to two between those that follow,
// whatever the number of objects, and one second in a drain.
func TestThePaceOfProbes(t *testing.T) {
	for _, drain := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var probes []time.Duration
			var q *queue
			work := func() {
				for it := taken(q); it != nil; it = taken(q) {
					if q.endpoint.down {
						probes = append(probes, time.Since(start))
					}
					q.judge(it, ended{began: time.Now(), at: time.Now()})
					q.retry(it, 10*time.Second, false)
				}
			}
			q = newQueue(&options{queueBytes: 1 << 20, concurrency: 32, maxAge: time.Hour, retryMax: 7}, newCollector().of("test"), 1, func() {
				if q.timerDue() {
					work()
				}
			})
			for i := range 100 {
				q.push(testItem(fmt.Sprint(i), "m"))
			}
			if drain {
				q.drain()
			}
			work()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			shortest, longest := time.Hour, time.Duration(0)
			for i := range probes[1:] {
				pause := probes[i+1] - probes[i]
				shortest, longest = min(shortest, pause), max(longest, pause)
			}
			switch {
			case probes[0] != 0:
				t.Errorf("the first probe after %v", probes[0])
			case drain && (shortest != time.Second || longest != time.Second):
				t.Errorf("in a drain from %v to %v between two probes", shortest, longest)
			case !drain && (shortest < time.Second || shortest > 1100*time.Millisecond || longest > 2*time.Second || longest < 1900*time.Millisecond):
				t.Errorf("from %v to %v between two probes", shortest, longest)
			}
			q.stop()
		})
	}
}

// Each probe is of another lane.
func TestProbesGoRoundTheLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<20, 4)
		for i := range 6 {
			q.push(testItem(fmt.Sprint(i), fmt.Sprint(i)))
		}
		first := taken(q)
		bringDown(q, first)
		q.retry(first, 0, false)
		asked := map[string]int{}
		for range 12 {
			it := taken(q)
			asked[it.message]++
			if taken(q) != nil {
				t.Fatal("two probes at once")
			}
			q.judge(it, ended{began: time.Now(), at: time.Now()})
			q.retry(it, 0, false)
			time.Sleep(2 * time.Second)
		}
		if len(asked) != 6 {
			t.Errorf("asked %v", asked)
		}
	})
}

// Or an object that records often would be posted as often, whatever the endpoint
// asked for.
func TestAnEventThatIsRecordedDoesNotEndTheWaitOfItsObject(t *testing.T) {
	q, _ := newTestQueue(1<<20, 2)
	q.push(testItem("a", "a0"))
	it := taken(q)
	q.retry(it, time.Minute, true)
	if _, start := q.push(testItem("a", "a1")); start || it.lane.place != waiting {
		t.Errorf("the wait is over, worker wanted: %v", start)
	}
}
