package events_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// knownMessages are all that the recorder logs; docs/operations.md explains them.
var knownMessages = map[string]bool{
	msgRecorded: true, msgDuplicate: true, msgLost: true, msgUnconfirmed: true,
	msgOutage: true, msgOutageOver: true, msgOutageIdle: true, msgMended: true, msgRelated: true,
	msgStopped: true, msgSaved: true, msgRecovered: true, msgDamaged: true, msgUnwritable: true,
}

// Everything at once, on real sockets: many goroutines record, the endpoint
// fails at random in every way it can, some flush, and in the end all shut down
// while events are still recorded.
func TestStressKeepsTheOrderAndTheSum(t *testing.T) {
	const (
		goroutines = 10
		each       = 300
		objects    = 4 // of each goroutine
	)
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	var calls atomic.Int64
	ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		calls.Add(1)
		behaviors := []eventstest.Behavior{
			eventstest.Status(500), eventstest.Status(503), eventstest.Respond(503, http.Header{"Retry-After": {"1"}}, ""),
			eventstest.Status(429), eventstest.Status(400), eventstest.Status(302), eventstest.Reset(), eventstest.Hang(),
			eventstest.Delay(time.Duration(rand.IntN(20)) * time.Millisecond),
		}
		if n := rand.IntN(3 * len(behaviors)); n < len(behaviors) {
			behaviors[n](w, r, normal)
			return
		}
		normal.ServeHTTP(w, r)
	})
	h := newHarness(t, ep.URL(), events.WithTimeout(30*time.Millisecond), events.WithRetryWait(time.Millisecond, 10*time.Millisecond),
		events.WithQueueBytes(600<<10), events.WithMaxAge(2*time.Second))

	var recording, flushing sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		flushing.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
					_ = h.Flush(ctx)
					cancel()
					h.outcomes()
				}
			}
		})
	}
	flushing.Go(func() { // the port closes and opens
		for _, requests := range []int{200, 800} { // each costs until the next probe
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, _ = ep.WaitRequests(ctx, requests)
			cancel()
			ep.Down()
			ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
			_ = h.Flush(ctx)
			cancel()
			if err := ep.Up(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for g := range goroutines {
		recording.Go(func() {
			for i := range each {
				h.AnnotatedEventf(pod(fmt.Sprintf("object%d-%d", g, i%objects)), map[string]string{"k": "v"}, "Warning", "Stress", "event %d", i)
				if i%10 == 9 { // for long only while nothing is delivered
					ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
					_ = h.Flush(ctx)
					cancel()
				}
				if g == 0 && i == each-20 {
					flushing.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
						defer cancel()
						_ = h.Shutdown(ctx)
					})
				}
			}
		})
	}
	recording.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	err := h.Shutdown(ctx)
	close(stop)
	flushing.Wait()
	ep.Behave(nil)

	got := h.outcomes()
	total := 0
	for outcome, n := range got {
		if outcome == "pending" {
			t.Errorf("%d events pending after the shutdown (%v)", n, err)
		}
		total += n
	}
	if total != goroutines*each {
		t.Errorf("%d outcomes of %d events: %v", total, goroutines*each, got)
	}
	arrived := wantOrderWithRepeats(t, ep.Events())
	if arrived < got["delivered"] {
		t.Errorf("%d different events arrived, but %d count as delivered", arrived, got["delivered"])
	}
	t.Logf("outcomes %v of %d events in %d requests, %d arrived", got, goroutines*each, calls.Load(), arrived)
	if got["delivered"] == 0 || got["rejected"] == 0 || got["duplicate"] == 0 {
		t.Error("the endpoint did not fail as it should")
	}
	for _, line := range h.log.matching(func(logLine) bool { return true }) {
		if !knownMessages[line.Message] {
			t.Errorf("an unknown log message: %v", line)
		}
	}
}

// wantOrderWithRepeats is wantOrder for an endpoint that may have taken an
// event without saying so, so that it was posted again.
func wantOrderWithRepeats(t *testing.T, taken []events.Event) (different int) {
	t.Helper()
	last := map[string]int{}
	for _, e := range taken {
		var n int
		if _, err := fmt.Sscanf(e.Message, "event %d", &n); err != nil {
			t.Fatal(err)
		}
		before, ok := last[e.InvolvedObject.Name]
		switch {
		case ok && n < before:
			t.Fatalf("event %d of %s arrived after %d", n, e.InvolvedObject.Name, before)
		case !ok || n > before:
			different++
		}
		last[e.InvolvedObject.Name] = n
	}
	return different
}

func liveHeap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

func TestAnOutageIsBoundedInMemoryGoroutinesAndConnections(t *testing.T) {
	for name, listening := range map[string]bool{"refuses": false, "hangs": true} {
		t.Run(name, func(t *testing.T) {
			// Nobody accepts: what is connected hangs, and no goroutine of
			// the endpoint counts here.
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if !listening {
				l.Close()
			}
			registry := prometheus.NewRegistry()
			r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), "http://"+l.Addr().String(), controllerName, events.WithMetricsRegisterer(registry))
			if err != nil {
				t.Fatal(err)
			}
			h := &harness{EventRecorder: r, t: t, registry: registry}
			heap, goroutines := liveHeap(), runtime.NumGoroutine()
			most := 0
			for i := range 100_000 {
				r.AnnotatedEventf(pod(fmt.Sprint("object", i%10_000)), map[string]string{"k": "v"}, corev1.EventTypeNormal, "Testing",
					"event %d about an object of which there are many, in an outage", i)
				if i%1000 == 0 {
					most = max(most, runtime.NumGoroutine())
				}
			}
			grown := liveHeap() - heap
			charged := int(h.value("event_recorder_pending_bytes"))
			got := h.outcomes()
			t.Logf("heap +%.1f MiB, charged %.1f MiB, ratio %.3f; %d goroutines more; %v", float64(grown)/(1<<20), float64(charged)/(1<<20),
				float64(grown)/float64(charged), most-goroutines, got)
			if grown > 24<<20 {
				t.Errorf("the heap grew by %d bytes, want at most 24 MiB", grown)
			}
			if ratio := float64(grown) / float64(charged); ratio > 1.25 || ratio < 0.8 {
				t.Errorf("charged %d bytes, but the heap grew by %d", charged, grown)
			}
			// 32 workers, and two for each connection or one that dials.
			if more := most - goroutines; more > 32+32*2 {
				t.Errorf("%d goroutines more", more)
			}
			if got["overflow"]+got["pending"] != 100_000 || got["overflow"] == 0 {
				t.Errorf("outcomes %v", got)
			}
			runtime.KeepAlive(r)
			h.shutdownNow()
		})
	}
}

// A recorder that is made for each event and never shut down, as some
// controllers do it.
func TestAThousandRecordersCostNothingWhenIdle(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	goroutines := runtime.NumGoroutine()
	registry := prometheus.NewRegistry()
	for i := range 1000 {
		r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), ep.URL(), controllerName, events.WithMetricsRegisterer(registry))
		if err != nil {
			t.Fatal(err)
		}
		r.Event(pod(fmt.Sprint("object", i)), "Normal", "Testing", "m")
	}
	if _, err := ep.Wait(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, registry: registry}
	wait, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for wait.Err() == nil && h.outcomes()["delivered"] < 1000 {
		runtime.Gosched()
	}
	h.wantOutcomes(map[string]int{"delivered": 1000})
	// The last shutdown closes what is idle of the shared transport.
	last, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), ep.URL(), controllerName, events.WithMetricsRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	if err := last.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Well before a connection would be closed for being idle.
	wait, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for wait.Err() == nil && runtime.NumGoroutine() > goroutines {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d at the start:\n%s", n, goroutines, buf[:runtime.Stack(buf, true)])
	}
}

// The queue must not keep a large string alive for a short one cut from it.
func TestAShortMessageDoesNotHoldTheLargeStringItWasCutFrom(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	ep.Down()
	h := newHarness(t, ep.URL())
	h.log.quiet = true
	r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), ep.URL(), controllerName, events.WithMetricsRegisterer(h.registry))
	if err != nil {
		t.Fatal(err)
	}
	before := liveHeap()
	for i := range 100 {
		large := fmt.Sprint(i, strings.Repeat("x", 1<<20))
		r.Event(pod("a"), "Normal", large[:5], large[:20])
	}
	if grown := liveHeap() - before; grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes for 100 short messages", grown)
	}
	runtime.KeepAlive(r)
	(&harness{EventRecorder: r}).shutdownNow()
}
