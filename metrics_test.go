package events_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

func recorderFor(t *testing.T, tr *eventstest.Transport, name string, opts ...events.Option) *events.EventRecorder {
	t.Helper()
	r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), tr.URL(), name, append([]events.Option{on(tr)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryMetricIsThereFromTheStart(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		families, err := h.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got, outcomes []string
		for _, f := range families {
			got = append(got, f.GetName())
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "outcome" {
						outcomes = append(outcomes, l.GetValue())
						if m.GetCounter().GetValue() != 0 {
							t.Errorf("%s begins at %v", l.GetValue(), m.GetCounter().GetValue())
						}
					}
				}
			}
		}
		want := []string{
			"event_recorder_attempt_duration_seconds", "event_recorder_endpoint_up", "event_recorder_events_total",
			"event_recorder_journal_bytes", "event_recorder_journal_errors_total",
			"event_recorder_oldest_pending_age_seconds",
			"event_recorder_pending_bytes", "event_recorder_pending_events", "event_recorder_recorded_total", "event_recorder_recovered_total",
		}
		if !slices.Equal(got, want) {
			t.Errorf("metrics %v, want %v", got, want)
		}
		slices.Sort(outcomes)
		all := slices.Sorted(slices.Values(outcomeNames))
		if !slices.Equal(outcomes, all) {
			t.Errorf("outcomes %v, want %v", outcomes, all)
		}
		if h.value("event_recorder_endpoint_up") != 1 {
			t.Error("endpoint_up begins at 0")
		}
		h.say("a", "m")
		h.settled() // now there is an attempt
		if families, err = h.registry.Gather(); err != nil || len(families) != len(want)+1 {
			t.Errorf("%d metrics after an attempt, error %v", len(families), err)
		}
		for _, f := range families {
			if f.GetHelp() == "" {
				t.Errorf("%s has no help", f.GetName())
			}
		}
	})
}

func TestRecordersOfOneControllerShareItsNumbers(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		registry := prometheus.NewRegistry()
		with := events.WithMetricsRegisterer(registry)
		a1, a2, b := recorderFor(t, tr, "a", with), recorderFor(t, tr, "a", with), recorderFor(t, tr, "b", with)
		tr.Behave(eventstest.Delay(time.Minute))
		a1.Event(pod("x"), "Normal", "R", "1")
		time.Sleep(time.Second)
		a2.Event(pod("y"), "Normal", "R", "2")
		b.Event(pod("z"), "Normal", "R", "3")
		time.Sleep(time.Second)
		for name, want := range map[string][2]float64{
			"event_recorder_recorded_total": {2, 1}, "event_recorder_pending_events": {2, 1},
			"event_recorder_oldest_pending_age_seconds": {2, 1},
		} {
			for i, controller := range []string{"a", "b"} {
				if got := metricValue(t, registry, name, "controller", controller); got != want[i] {
					t.Errorf("%s of %s is %v, want %v", name, controller, got, want[i])
				}
			}
		}
		for _, r := range []*events.EventRecorder{a1, a2, b} {
			_ = r.Flush(t.Context())
		}
		if n := metricValue(t, registry, "event_recorder_pending_bytes"); n != 0 {
			t.Errorf("%v bytes pending", n)
		}
	})
}

func TestEndpointUpIsZeroWhileAnyRecorderOfTheControllerCannotReachIts(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		down := eventstest.NewTransport()
		defer down.Close()
		down.Down()
		registry := prometheus.NewRegistry()
		with := events.WithMetricsRegisterer(registry)
		a, b := recorderFor(t, tr, "c", with), recorderFor(t, down, "c", with)
		a.Event(pod("x"), "Normal", "R", "m")
		b.Event(pod("x"), "Normal", "R", "m")
		time.Sleep(time.Minute)
		up := func() float64 { return metricValue(t, registry, "event_recorder_endpoint_up") }
		if up() != 0 {
			t.Error("1 though one endpoint does not answer")
		}
		_ = down.Up()
		if err := b.Flush(t.Context()); err != nil || up() != 1 {
			t.Errorf("%v after both answer, %v", up(), err)
		}
		down.Down()
		b.Event(pod("x"), "Normal", "R", "m")
		time.Sleep(time.Minute)
		h := &harness{EventRecorder: b}
		h.shutdownNow()
		if up() != 1 {
			t.Error("0 for ever after the recorder was shut down in an outage")
		}
	})
}

func TestAControllersNameThatIsNoUTF8DoesNotBreakTheScrape(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		registry := prometheus.NewRegistry()
		r := recorderFor(t, tr, "bad\xffname", events.WithMetricsRegisterer(registry))
		r.Event(pod("a"), "Normal", "R", "m")
		_ = r.Flush(t.Context())
		if n := metricValue(t, registry, "event_recorder_attempts_total", "controller", "bad\uFFFDname"); n != 1 {
			t.Errorf("%v attempts", n)
		}
	})
}

func TestRegisterersThatAddLabelsAreShared(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		registry := prometheus.NewRegistry()
		for i := range 2 {
			wrapped := prometheus.WrapRegistererWith(prometheus.Labels{"shard": "1"}, registry)
			r := recorderFor(t, tr, "c", events.WithMetricsRegisterer(wrapped))
			r.Event(pod("a"), "Normal", "R", fmt.Sprint(i))
			_ = r.Flush(t.Context())
		}
		if n := metricValue(t, registry, "event_recorder_recorded_total", "shard", "1"); n != 2 {
			t.Errorf("recorded %v, want 2", n)
		}
	})
}

func TestTheDefaultRegistryIsThatOfControllerRuntime(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		delivered := func() float64 {
			return metricValue(t, metrics.Registry, "event_recorder_events_total", "controller", "default-registry", "outcome", "delivered")
		}
		before := delivered() // of the same test, run before
		r := recorderFor(t, tr, "default-registry")
		r.Event(pod("a"), "Normal", "R", "m")
		_ = r.Flush(t.Context())
		if n := delivered() - before; n != 1 {
			t.Errorf("delivered %v", n)
		}
	})
}

// A scrape at any moment finds recorded = outcomes + pending: outcomes, called
// all the time, fails the test otherwise.
func TestTheSumHoldsAtEveryScrape(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Delay(time.Millisecond))
		h := newHarness(t, tr.URL(), on(tr), events.WithQueueBytes(20_000))
		h.log.quiet = true
		stop := make(chan struct{})
		scraped := make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					scraped <- n
					return
				default:
					h.outcomes()
					n++
					time.Sleep(100 * time.Microsecond)
				}
			}
		}()
		for i := range 2000 {
			h.say(fmt.Sprint("object", i%50), fmt.Sprint("event ", i))
			time.Sleep(50 * time.Microsecond)
		}
		h.settled()
		close(stop)
		if n := <-scraped; n < 100 {
			t.Errorf("only %d scrapes", n)
		}
		synctest.Wait()
		h.shutdownNow()
	})
}

// What is recorded after the end is counted twice at once, or not at all: recorded
// and shutdown belong together.
func TestTheSumHoldsWhileEventsAreRecordedAfterTheEnd(t *testing.T) {
	h := newHarness(t, "http://127.0.0.1:1/")
	h.log.quiet = true
	if err := h.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	var recording sync.WaitGroup
	stop := make(chan struct{})
	for g := range 4 {
		recording.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					h.say(fmt.Sprint("object", g), fmt.Sprint("event ", i))
				}
			}
		})
	}
	for range 300 {
		if h.outcomes(); t.Failed() { // checks the sum
			break
		}
	}
	close(stop)
	recording.Wait()
	if got := h.outcomes(); got["shutdown"] == 0 || got["pending"] != 0 {
		t.Errorf("outcomes %v", got)
	}
}
