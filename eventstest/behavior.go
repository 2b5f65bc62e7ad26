package eventstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// A Behavior answers one request in place of notification-controller. Nil is
// the normal behaviour.
//
// The body has been read and kept before a Behavior is called, and r.Body holds
// all of it. The context of r is done when the client gives up and when the
// endpoint goes down or is closed. Calling normal answers as
// notification-controller does, and takes the event if that does; with another
// ResponseWriter than w, the client does not learn of it. A panic with
// [http.ErrAbortHandler] closes the connection without an answer. On an
// [Endpoint], w is an [http.Flusher].
//
// Normal works on the context of the request that it is called with. If that is
// done, it remembers the event for the sake of duplicates, but does not take it,
// and panics with http.ErrAbortHandler, since nobody waits for an answer.
//
// An event that a Behavior answers with a 2xx status counts as taken, but is
// not remembered as the first of its duplicates unless normal was called.
//
// A Behavior may be called from several goroutines at once.
type Behavior func(w http.ResponseWriter, r *http.Request, normal http.Handler)

// Status answers every request with the status code and an empty body. It
// panics if code is not between 200 and 999.
func Status(code int) Behavior {
	return Respond(code, nil, "")
}

// Respond answers every request with the status code, the header (which may be
// nil) and the body. It panics if code is not between 200 and 999.
func Respond(code int, header http.Header, body string) Behavior {
	if code < 200 || code > 999 {
		panic(fmt.Sprintf("eventstest: Respond(%d): must be a status between 200 and 999", code))
	}
	header = header.Clone()
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		for name, values := range header {
			w.Header()[name] = append([]string(nil), values...)
		}
		w.WriteHeader(code)
		if body != "" {
			_, _ = io.WriteString(w, body)
		}
	}
}

// errReset is panicked with by Reset, as http.ErrAbortHandler is by others:
// only what is behind the ResponseWriter knows how to reset a connection.
var errReset = errors.New("eventstest: connection reset")

// Reset closes the connection with a TCP reset, without an answer. The event is
// not taken.
func Reset() Behavior {
	return func(http.ResponseWriter, *http.Request, http.Handler) { panic(errReset) }
}

// Hang gives no answer until the client gives up or the endpoint goes down or
// is closed. The event is neither taken nor remembered: a retry is no duplicate.
// See [Delay] for an endpoint that remembers it.
func Hang() Behavior {
	return func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
}

// Delay behaves as a notification-controller that needs d to look up the alerts
// of an event:
//
//   - The event is remembered when it arrives. From then on its duplicates are
//     answered 429. They are not delayed, and neither are 400 and 413.
//   - After d it is taken and answered 202, if the client still waits for that.
//   - A client that gives up before d is over gets nothing, and its event is not
//     taken. The retry is a duplicate of what was lost, and answered 429.
//     The same goes for an endpoint that goes down or is closed before.
//   - With d above 15 seconds, notification-controller runs out of time. After
//     15 seconds it answers 202 all the same, and the event is not taken.
//
// The duration is counted from the arrival of each request, for each on its own.
// With zero or less there is no delay.
func Delay(d time.Duration) Behavior {
	return func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		normal.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), delayKey{}, d)))
	}
}

// delayKey is the key of the context's value in which Delay tells the normal
// behaviour how long to work on the event, since the work lies between two steps
// of normal. A Behavior that wraps normal hands the context on.
type delayKey struct{}
