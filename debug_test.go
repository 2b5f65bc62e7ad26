package events_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

func TestTheDebugPageShowsWhatEachObjectWaitsFor(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, "http://user:pass@host/secret?token=t", on(tr))
		page := func() string {
			w := httptest.NewRecorder()
			h.DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			if got := w.Header().Get("Content-Type"); got != "text/plain; charset=utf-8" {
				t.Errorf("content type %q", got)
			}
			return w.Body.String()
		}
		if got := page(); !strings.Contains(got, "http://host, up\n") || !strings.Contains(got, "pending: 0 events about 0 objects") {
			t.Errorf("idle: %s", got)
		}
		tr.Behave(poisoned(eventstest.Status(500)))
		h.say("sick", "poison one")
		h.say("sick", "poison two")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		got := page()
		if !strings.Contains(got, "pending: 2 events about 1 objects") || !strings.Contains(got, `waiting       2        5s`) ||
			!strings.Contains(got, `Pod "default"/"sick", "Testing"`) {
			t.Errorf("one object: %s", got)
		}
		for _, secret := range []string{"poison", "user", "pass", "secret", "token"} {
			if strings.Contains(got, secret) {
				t.Errorf("shows %q: %s", secret, got)
			}
		}
		tr.Down()
		for i := range 300 {
			h.say(strings.Repeat("x", i+1), "m")
		}
		time.Sleep(20 * time.Second)
		if got := page(); !strings.Contains(got, "down since ") || strings.Count(got, "\n") != 4+2+100 {
			t.Errorf("an outage: %s", got)
		}
		h.shutdownNow()
	})
}

func TestTheDebugPageOfNothing(t *testing.T) {
	for _, r := range []*events.EventRecorder{nil, {}, newHarness(t, "").EventRecorder} {
		w := httptest.NewRecorder()
		r.DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := w.Body.String(); got != "no notification endpoint\n" {
			t.Errorf("%q", got)
		}
	}
}
