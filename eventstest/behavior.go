package eventstest

import (
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
// is closed. The event is not taken; see [Delay] for one that is.
func Hang() Behavior {
	return func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
}

// Delay behaves normally, but holds the answer back for d, or until the client
// gives up or the endpoint goes down or is closed.
//
// The event is taken when it arrives, as by a notification-controller that is
// slow to look up its alerts: a client that gave up and posts the event again
// is told that it is a duplicate.
func Delay(d time.Duration) Behavior {
	return func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		// Nothing is sent before the Behavior returns.
		normal.ServeHTTP(w, r)
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
}
