package eventstest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/eventrecorder/events"
)

// What notification-controller is set to. See the package documentation for
// what follows from each.
const (
	defaultWindow     = 5 * time.Minute
	maxBodyBytes      = 3 << 20
	maxHeaderBytes    = 256 << 10
	readHeaderTimeout = 10 * time.Second
	readTimeout       = 30 * time.Second
	handlerTimeout    = 15 * time.Second // from the limiter to the answer
)

// newServer has the limits of the controller's server. The controller sets no
// idle timeout, and net/http then takes the read timeout. It is spelled out
// here because a client has to stay below it.
func newServer(handler http.HandlerFunc) *http.Server {
	// The controller has no TLS, hence no HTTP/2, and neither has its double
	// when it is asked for TLS.
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       readTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         http1,
	}
}

// readEvent returns the body and either the event in it or the status that
// refuses it.
func readEvent(r *http.Request) (body []byte, event events.Event, refusal int) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
	switch {
	case err != nil:
		return body, events.Event{}, http.StatusBadRequest
	case len(body) > maxBodyBytes:
		return body, events.Event{}, http.StatusRequestEntityTooLarge
	case json.Unmarshal(body, &event) != nil:
		return body, events.Event{}, http.StatusBadRequest
	}
	return body, event, 0
}

// duplicateKey joins what makes two events the same to the controller, in the
// way it does: an event that differs only in where a slash stands in its
// message and metadata is a duplicate there, so it is one here.
func duplicateKey(event *events.Event) string {
	object := &event.InvolvedObject
	parts := []string{
		"event",
		"name=" + object.Name,
		"namespace=" + object.Namespace,
		"kind=" + object.Kind,
		"message=" + event.Message,
	}
	group := object.GroupVersionKind().Group
	for _, name := range []string{"originRevision", "revision", "token"} {
		if value, ok := event.Metadata[group+"/"+name]; ok {
			parts = append(parts, name+"="+value)
		}
	}
	return strings.Join(parts, "/")
}

// window is the memory of the controller's rate limiter: one event per key and
// tick. The ticks of a key are counted from its very first event and do not
// move afterwards, so the second event that is admitted may be followed by a
// third sooner than one interval later.
type window struct {
	interval time.Duration // 0: no deduplication
	keys     map[string]tick
}

type tick struct {
	start time.Time
	last  int64 // number of the tick in which an event was last admitted
}

// admit reports whether the event with this key is no duplicate now, and when
// the current tick of the key ends. Whatever becomes of the event afterwards, it
// was the one of its tick.
func (w *window) admit(key string, now time.Time) (first bool, reset time.Time) {
	t, known := w.keys[key]
	if !known {
		t.start = now
	}
	current := int64(now.Sub(t.start) / w.interval)
	reset = t.start.Add(time.Duration(current+1) * w.interval)
	if known && current <= t.last {
		return false, reset
	}
	t.last = current
	if w.keys == nil {
		w.keys = make(map[string]tick)
	}
	w.keys[key] = t
	return true, reset
}

// writeVerdict is the answer of the controller to an event that could be read.
func writeVerdict(w http.ResponseWriter, first bool, reset time.Time) {
	if !reset.IsZero() {
		at := reset.UTC().Format(http.TimeFormat)
		w.Header().Set("X-RateLimit-Limit", "1")
		w.Header().Set("X-RateLimit-Remaining", "0")
		w.Header().Set("X-RateLimit-Reset", at)
		if !first {
			w.Header().Set("Retry-After", at)
		}
	}
	if !first {
		http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}
