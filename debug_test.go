package events_test

import (
	"net/http"
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
		if !strings.Contains(got, "pending: 2 events about 1 objects") || !strings.Contains(got, `waiting       2        5s`) || strings.Count(got, "\n") != 4+2+1 ||
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

func TestTheDebugPageShowsWhatIsReadyWhatIsPostedAndWhatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithConcurrency(1))
		after := func(seconds string) eventstest.Behavior {
			return eventstest.Respond(503, http.Header{"Retry-After": {seconds}}, "")
		}
		tr.BehaveNext(after("1"), after("2"), eventstest.Delay(5*time.Second))
		tr.Behave(eventstest.Hang())
		want := func(rows ...string) {
			t.Helper()
			synctest.Wait()
			w := httptest.NewRecorder()
			h.DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
			lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")[6:]
			for i, row := range rows {
				if fields := strings.Fields(lines[i]); len(lines) != len(rows) || fields[0]+" "+fields[6] != row {
					t.Errorf("got %q, want %q", lines, rows)
				}
			}
		}
		h.say("first", "m")
		h.say("second", "m")
		time.Sleep(100 * time.Millisecond)
		h.say("third", "m")
		want(`waiting "default"/"first",`, `waiting "default"/"second",`, `posting "default"/"third",`)
		time.Sleep(5 * time.Second)
		h.say("new", "m")
		want(`posting "default"/"first",`, `ready "default"/"second",`, `ready "default"/"new",`)
		h.shutdownNow()
	})
}

// Whoever shows the page must not guess what it is from what controllers write.
func TestTheDebugPageSaysThatItIsText(t *testing.T) {
	for _, h := range []*harness{newHarness(t, "http://host/"), newHarness(t, "")} {
		w := &headerOnly{header: http.Header{}}
		h.DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := w.header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
			t.Errorf("content type %q", got)
		}
	}
}

// headerOnly is a ResponseWriter that, unlike httptest's, guesses no content type.
type headerOnly struct{ header http.Header }

func (h *headerOnly) Header() http.Header         { return h.header }
func (h *headerOnly) Write(p []byte) (int, error) { return len(p), nil }
func (h *headerOnly) WriteHeader(int)             {}

func TestTheDebugPageOfNothing(t *testing.T) {
	for _, r := range []*events.EventRecorder{nil, {}, newHarness(t, "").EventRecorder} {
		w := httptest.NewRecorder()
		r.DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := w.Body.String(); got != "no notification endpoint\n" {
			t.Errorf("%q", got)
		}
	}
}
