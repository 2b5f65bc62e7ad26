package events_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// What operations.md says about limits, and about a recorder for each event. These
// are no promises: if one of them becomes better, the page must say so.

func TestOperationsLimitFewObjectsAndStatus500(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Status(500))
		h := newHarness(t, tr.URL(), on(tr))
		start := time.Now()
		h.say("a", "first")
		h.say("a", "second")
		for len(h.log.with(msgLost)) == 0 && time.Since(start) < 10*time.Minute {
			time.Sleep(time.Second)
			if h.value("event_recorder_endpoint_up") != 1 {
				t.Fatal("endpoint_up is 0")
			}
		}
		if took := time.Since(start); took < 80*time.Second || took > 170*time.Second {
			t.Errorf("given up after %v", took)
		}
		h.wantOutcomes(map[string]int{"exhausted": 1, "pending": 1})
		h.shutdownNow()
	})
	// With four objects, or another status, it is an outage.
	for _, other := range []struct{ status, objects int }{{500, 4}, {502, 1}, {503, 1}, {504, 1}} {
		bubble(t, func(t *testing.T, tr *eventstest.Transport) {
			tr.Behave(eventstest.Status(other.status))
			h := newHarness(t, tr.URL(), on(tr))
			for i := range other.objects {
				h.say(fmt.Sprint("object", i), "m")
			}
			time.Sleep(10 * time.Minute)
			if h.value("event_recorder_endpoint_up") != 0 {
				t.Errorf("%+v: endpoint_up is 1", other)
			}
			h.wantOutcomes(map[string]int{"pending": other.objects})
			h.shutdownNow()
		})
	}
}

// Only events with a strike are pending when the endpoint goes down.
func TestOperationsLimitAnEventThatHasFailedAlready(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "poison") {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusAccepted)
		})
		h := newHarness(t, tr.URL(), on(tr))
		h.say("bad", "poison")
		for i := range 20 {
			h.say("good", fmt.Sprint("event ", i))
			time.Sleep(time.Second)
		}
		tr.Down()
		time.Sleep(10 * time.Minute)
		if h.value("event_recorder_endpoint_up") != 1 {
			t.Error("it is called an outage")
		}
		h.say("good", "one more")
		time.Sleep(time.Minute)
		if h.value("event_recorder_endpoint_up") != 0 {
			t.Error("it is no outage with another event either")
		}
		h.wantOutcomes(map[string]int{"delivered": 20, "pending": 2})
		h.shutdownNow()
	})
}

func TestOperationsAnEndpointThatHangsIsShownLaterIfOnlyOneObjectHasEvents(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Hang())
		h := newHarness(t, tr.URL(), on(tr))
		start := time.Now()
		h.say("a", "m")
		for h.value("event_recorder_endpoint_up") != 0 && time.Since(start) < 5*time.Minute {
			time.Sleep(time.Second)
		}
		if took := time.Since(start); took < 65*time.Second || took > 75*time.Second {
			t.Errorf("shown after %v", took)
		}
		h.shutdownNow()
	})
}

func TestOperationsOneRecorderForEachEventGivesUpTheOrderThePaceAndTheMerging(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr))
		h.log.quiet = true
		recorders := crowd(t, h, tr, 50)
		for _, r := range recorders {
			r.Event(pod("a"), "Normal", "Testing", "says the same")
		}
		time.Sleep(5 * time.Minute)
		h.wantOutcomes(map[string]int{"pending": 50}) // not one entry
		if n := len(tr.Requests()); n != 0 {
			t.Errorf("%d requests came to an endpoint that is down", n)
		}
		before := h.value("event_recorder_attempts_total")
		time.Sleep(time.Minute)
		if n := h.value("event_recorder_attempts_total") - before; n < 50*60/2 || n > 50*60 {
			t.Errorf("%v attempts in a minute of 50 recorders", n)
		}
		if h.value("event_recorder_endpoint_up") != 0 {
			t.Error("no outage is shown")
		}
		for _, r := range recorders {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = r.Shutdown(ctx)
		}
	})
}

func TestOperationsAJournalBelongsToOneRecorder(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		_, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), tr.URL(), controllerName, on(tr),
			events.WithMetricsRegisterer(h.registry), events.WithJournal(dir))
		files, _ := filepath.Glob(filepath.Join(dir, "*.journal"))
		if err == nil || len(files) != 1 || !strings.Contains(err.Error(), filepath.Base(files[0])) {
			t.Errorf("files %v, error %v", files, err)
		}
		if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, error %v", info.Mode(), err)
		}
		h.shutdownNow()
	})
}

// With a journal, a drain ends as soon as the endpoint is down.
func TestOperationsADrainWithAJournalDoesNotWaitForAnEndpointThatIsDown(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		h.say("a", "m")
		time.Sleep(time.Minute)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if err := h.Shutdown(ctx); err == nil || time.Since(start) > 100*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		h.wantOutcomes(map[string]int{"saved": 1})
	})
}
