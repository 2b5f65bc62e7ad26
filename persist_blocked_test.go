package events

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

func journaling(t testing.TB, dir string, transport http.RoundTripper) *EventRecorder {
	t.Helper()
	opts := []Option{WithHTTPClient(&http.Client{Transport: transport}), WithMetricsRegisterer(prometheus.NewRegistry())}
	if dir != "" {
		opts = append(opts, WithJournal(dir))
	}
	r, err := NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), "http://endpoint/", "test", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var refuses = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errQueueFull })

func testPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "apps", UID: "6c1ee2f5", ResourceVersion: "1"}}
}

// A write that blocks holds the lock of persistence for as long. So does this
// test, in place of a file system that gives no answer.
func TestWhileTheDiskBlocksNoRecordingCallWaitsAndShutdownASecondAtMost(t *testing.T) {
	r := journaling(t, t.TempDir(), refuses)
	pod := testPod("a")
	p := r.shared.delivery.journal
	r.Event(pod, "Normal", "Testing", "written before")
	time.Sleep(200 * time.Millisecond)
	p.mu.Lock()
	written := p.journal.LiveBytes()
	p.paused = time.Now().Add(journalPause)
	blocked := true
	defer func() {
		if blocked {
			p.mu.Unlock()
		}
	}()
	var took []time.Duration
	for i := range 300 {
		began := time.Now()
		r.Event(pod, "Normal", "Testing", fmt.Sprint("event ", i))
		took = append(took, time.Since(began))
		time.Sleep(time.Millisecond) // a write would begin meanwhile
	}
	slices.Sort(took)
	t.Logf("a call took %v in the median, %v at most", took[150], took[299])
	if took[150] > time.Millisecond || took[299] > 100*time.Millisecond {
		t.Error("it waits for the disk")
	}
	if n := r.shared.delivery.queue.length(); n != 301 {
		t.Errorf("%d events are pending", n)
	}

	for name, patience := range map[string]time.Duration{"first": 300 * time.Millisecond, "later": 0} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		began := time.Now()
		err := r.Shutdown(ctx)
		cancel()
		if more := time.Since(began) - patience; more > cancelGrace+time.Second/2 {
			t.Errorf("the %s Shutdown took %v longer than its context", name, more)
		}
		if err == nil {
			t.Error("no error, though nothing was saved")
		}
	}
	if n := r.shared.delivery.counts.outcomes[shutdown].Load(); n != 301 {
		t.Errorf("%d events are counted as lost", n)
	}
	j := p.journal
	p.mu.Unlock()
	blocked = false
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		p.mu.Lock()
		over := p.journal == nil
		p.mu.Unlock()
		if over {
			if n := j.LiveBytes(); n != written || n == 0 {
				t.Errorf("%d bytes are left of %d in the journal, which may be all that there is", n, written)
			}
			return
		}
	}
	t.Error("the journal stays open when the disk works again")
}

// idle reports whether no timer of the journal is set.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.saveArmed && (q.saveTimer == nil || !q.saveTimer.Stop()) && q.unsavedFirst == nil && len(q.done) == 0
}

func TestNoTimerOfTheJournalIsSetWhileNothingIsPendingNorAfterAShutdown(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var answer http.RoundTripper = refuses
		r := journaling(t, dir, roundTripper(func(req *http.Request) (*http.Response, error) { return answer.RoundTrip(req) }))
		q := r.shared.delivery.queue
		if !q.idle() {
			t.Error("not idle at first")
		}
		r.Event(testPod("a"), "Normal", "Testing", "event 1")
		time.Sleep(5 * time.Second)
		if !q.idle() {
			t.Error("not idle though all is in the journal")
		}
		opened := make(chan struct{})
		close(opened)
		answer = heldEndpoint(opened)
		if err := r.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if q.idle() {
			t.Error("nothing comes for what is done")
		}
		time.Sleep(time.Second)
		if !q.idle() {
			t.Error("not idle though all is done")
		}
		r.Event(testPod("a"), "Normal", "Testing", "event 2")
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if q.saveTimer.Stop() {
			t.Error("a timer is set after the shutdown")
		}
		p := r.shared.delivery.journal
		p.save() // by a timer that had just fired
		p.paused = time.Now().Add(journalPause)
		p.save()
		if q.saveTimer.Stop() {
			t.Error("a timer is set after the shutdown")
		}
	})
}

// A rewrite copies what is pending in batches; what happens between two of them
// must not be lost.
func TestWhatHappensDuringARewriteIsInTheJournalAfterIt(t *testing.T) {
	q, counts := newTestQueue(1<<30, 1)
	q.journaled = func() {}
	defer func() { q.stop() }()
	var have []uint64
	take := func(batch []savedItem) int {
		for _, it := range batch {
			have = append(have, it.seq)
		}
		return len(batch)
	}
	for i := range 5 * saveBatch {
		q.push(testItem("a", fmt.Sprint("event ", i)))
	}
	for take(q.unsaved(0, q.last())) > 0 {
	}
	if len(have) != 5*saveBatch || len(q.takeDone()) != 0 {
		t.Fatalf("%d events were written", len(have))
	}

	have = nil
	upTo := q.unsaveAll()
	for i := 0; ; i++ {
		batch := q.unsaved(0, upTo)
		if len(batch) > saveBatch {
			t.Fatalf("a batch of %d", len(batch))
		}
		if take(batch) == 0 {
			break
		}
		// One that was copied is settled, the rest are not; others come.
		q.settle(taken(q), delivered)
		q.push(testItem("a", fmt.Sprint("new event ", i)))
	}
	if len(have) != 5*saveBatch || !slices.IsSorted(have) {
		t.Errorf("%d events were written", len(have))
	}
	if done := q.takeDone(); len(done) != 5 || !slices.Equal(done, have[:5]) {
		t.Errorf("%v are done", done)
	}
	have = nil
	for take(q.unsaved(0, q.last())) > 0 {
	}
	if len(have) != 5 {
		t.Errorf("%d events came meanwhile and are written later", len(have))
	}
	checkSum(t, counts)
}

func TestTheJournalDependsOnNoClock(t *testing.T) {
	q, _ := newTestQueue(1<<30, 1)
	q.journaled = func() {}
	defer func() { q.stop() }()
	// Two goroutines may come to the queue in another order than to the clock, and a
	// clock that was set back makes events of the future.
	future, old := testItem("a", "of the future"), testItem("a", "old")
	future.recorded, old.recorded = time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	q.push(future)
	q.push(old)
	if batch := q.unsaved(saveAge, q.last()); len(batch) != 0 {
		t.Errorf("%d events are written, in another order than that of the queue", len(batch))
	}
	if batch := q.unsaved(0, q.last()); len(batch) != 2 {
		t.Errorf("%d of 2 events are written when all shall be", len(batch))
	}
}

func TestWhatIsDoneDuringAWriteIsWrittenLater(t *testing.T) {
	q, _ := newTestQueue(1<<30, 1)
	q.journaled = func() {}
	defer func() { q.stop() }()
	q.push(testItem("a", "event 1"))
	q.unsaved(0, q.last()) // the write has begun
	q.settle(taken(q), delivered)
	q.saveAgain(time.Time{}) // and ends
	if !q.saveArmed {
		t.Error("no timer is set")
	}
}

func TestWhatIsDoneDuringAWriteDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := newTestQueue(1<<30, 1)
		var saved []time.Duration
		began := time.Now()
		q.journaled = func() { saved = append(saved, time.Since(began)) }
		q.push(testItem("a", "event 1"))
		time.Sleep(70 * time.Millisecond) // a write takes until now
		q.done = []uint64{7}
		q.saveAgain(time.Time{})
		time.Sleep(time.Second)
		synctest.Wait()
		if len(saved) != 1 || saved[0] < saveAge || saved[0] > saveAge+saveEvery {
			t.Errorf("written after %v", saved)
		}
		q.stop()
	})
}
