package events

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestAWaitHoldsNoWorkerAndEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fired := []time.Duration{}
		start := time.Now()
		var q *queue
		q = newQueue(&options{queueBytes: 1 << 20, concurrency: 2, maxAge: time.Hour}, newCollector().of("test"), 1, func() {
			fired = append(fired, time.Since(start))
			if q.timerDue() {
				takeAll(q)
			}
		})
		for _, object := range []string{"a", "b", "c"} {
			q.push(testItem(object, object))
		}
		for _, wait := range []time.Duration{5 * time.Second, 2 * time.Second, 9 * time.Second} {
			q.retry(taken(q), wait, false)
		}
		for range 2 { // the workers end
			if it := taken(q); it != nil {
				t.Fatalf("took %q", it.message)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if fmt.Sprint(fired) != "[2s 5s 9s]" || q.size != 0 {
			t.Errorf("the timer fired after %v, %d events left", fired, q.size)
		}
	})
}

func TestTheTimerIsNotSetForWhatOnlyLacksAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fired := 0
		var q *queue
		q = newQueue(&options{queueBytes: 1 << 20, concurrency: 1, maxAge: time.Hour}, newCollector().of("test"), 1, func() {
			fired++
			q.timerDue()
		})
		q.push(testItem("a", "a"))
		q.push(testItem("b", "b"))
		q.retry(taken(q), time.Second, false)
		b := taken(q) // and hangs
		q.push(testItem("c", "c"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if fired > 1 || !q.timerAt.IsZero() {
			t.Errorf("the timer fired %d times", fired)
		}
		q.settle(b, delivered)
		wantMessages(t, takeAll(q), "c", "a")
	})
}

func TestAStoppedQueueHasNoTimerAndHandsOutNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fired := false
		q := newQueue(&options{queueBytes: 1 << 20, concurrency: 2, maxAge: time.Hour}, newCollector().of("test"), 1, func() { fired = true })
		for _, object := range []string{"a", "b", "c"} {
			q.push(testItem(object, object))
		}
		q.retry(taken(q), time.Second, false)
		b := taken(q)
		for q.workers > 1 {
			q.workers--
		}
		q.push(testItem("d", "d")) // a second worker
		q.armLocked(time.Now())
		quit := q.stop()
		q.settle(b, delivered)
		for range 2 {
			if isDone(quit) || taken(q) != nil {
				t.Fatal("ended early, or handed out an event")
			}
		}
		if !isDone(quit) {
			t.Error("not ended with the last worker")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if fired || q.timerDue() || !q.timerAt.IsZero() {
			t.Error("the timer fired")
		}
	})
}

func TestDroppingTheHeadOfALaneEndsItsWait(t *testing.T) {
	cost := testItem("a", "0").bytes
	for _, wait := range []time.Duration{0, time.Hour} {
		for _, behind := range []bool{true, false} {
			for _, pushed := range []string{"a", "z"} {
				synctest.Test(t, func(t *testing.T) {
					q, _ := newTestQueue(3*cost+2*laneBytes, 1)
					q.push(testItem("a", "0"))
					it := taken(q)
					q.judge(it, ended{began: time.Now(), at: time.Now()})
					q.retry(it, wait, true)
					if q.armLocked(time.Now()); q.timerAt.IsZero() != (wait == 0) {
						t.Fatal("the timer")
					}
					q.workers = 0
					if behind {
						q.push(testItem("a", "1"))
						q.workers = 0
					}
					big := testItem(pushed, "big")
					big.bytes = q.limit - q.bytes + 1
					if pushed != "a" {
						big.bytes -= laneBytes
					}
					lost, start := q.push(big)
					if lost.events != 1 || lost.one.message != "0" || !start || !q.timerAt.IsZero() && wait == 0 {
						t.Fatalf("lost %+v, worker wanted: %v", lost, start)
					}
					if err := q.checkLocked(time.Now(), 1); err != nil {
						t.Error(err)
					}
					want := []string{"big"}
					if behind {
						want = []string{"1", "big"}
					}
					wantMessages(t, takeAll(q), want...)
				})
			}
		}
	}
}

func TestRetryWhileDownIsReadyAtOnceUnlessTheEndpointAskedToWait(t *testing.T) {
	for _, test := range []struct {
		down, drain, asked bool
		wait, want         time.Duration // want 0: ready at once
	}{
		{wait: 5 * time.Second, want: 5 * time.Second},
		{wait: 0, want: 0},
		{asked: true, wait: 0, want: 0},
		{asked: true, wait: 30 * time.Second, want: 30 * time.Second},
		{down: true, wait: 5 * time.Second, want: 0},
		{down: true, asked: true, wait: 30 * time.Second, want: 30 * time.Second},
		{drain: true, wait: 5 * time.Second, want: time.Second},
		{drain: true, wait: 300 * time.Millisecond, want: 300 * time.Millisecond},
		{drain: true, asked: true, wait: 30 * time.Second, want: time.Second},
		{drain: true, down: true, wait: 5 * time.Second, want: 0},
		{drain: true, down: true, asked: true, wait: 30 * time.Second, want: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			q, _ := newTestQueue(1<<20, 1)
			q.push(testItem("a", "a"))
			it := taken(q)
			if test.down {
				bringDown(q, it)
			}
			if test.drain {
				q.drain()
			}
			q.retry(it, test.wait, test.asked)
			if ready := it.lane.place == fresh || it.lane.place == failed; ready != (test.want == 0) {
				t.Fatalf("%+v: ready %v", test, ready)
			}
			if test.want > 0 && !q.due(it.lane).Equal(time.Now().Add(test.want)) {
				t.Errorf("%+v: waits for %v", test, time.Until(q.due(it.lane)))
			}
		})
	}
}

func TestADrainEndsEveryWait(t *testing.T) {
	q, c := newTestQueue(1<<20, 4)
	for _, object := range []string{"a", "b", "c"} {
		q.push(testItem(object, object))
		q.retry(taken(q), time.Hour, true)
	}
	taken(q)
	if !q.drain() {
		t.Error("no worker wanted")
	}
	wantMessages(t, takeAll(q), "a", "b", "c")
	lost, start := q.push(testItem("d", "d"))
	if lost.outcome != shutdown || lost.cause != errClosed || lost.events != 1 || lost.one.message != "d" || start {
		t.Errorf("after the drain: %+v", lost)
	}
	if s := checkSum(t, c); s.outcomes[shutdown] != 1 || s.pending != 0 {
		t.Errorf("counts %+v", s)
	}
}

func TestEveryWaitIsOverWhenTheEndpointGoesDownOrComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<20, 4)
		for _, object := range []string{"a", "b", "c"} {
			q.push(testItem(object, object))
		}
		a, b, c := taken(q), taken(q), taken(q)
		q.retry(a, time.Hour, false)
		bringDown(q, b)
		if a.lane.place == waiting {
			t.Error("down, and it waits")
		}
		q.retry(taken(q), time.Hour, true) // a again
		q.judge(c, ended{began: time.Now(), at: time.Now()})
		if a.lane.place != waiting {
			t.Error("one more failure ends its wait")
		}
		q.judge(c, ended{began: time.Now(), at: time.Now(), served: true})
		if a.lane.place == waiting {
			t.Error("back, and it waits")
		}
	})
}
