package eventstest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

// A Transport is an endpoint without a socket: an [http.RoundTripper] that
// answers each request itself. It is the way to test a controller in virtual
// time, in a bubble of testing/synctest, where waiting on a socket would stop
// the clock. Make it with [NewTransport], in the bubble.
//
// It has the methods of [Endpoint], and the same answers. Every URL reaches it.
// A request runs on the goroutine of its caller, and no other is started. What
// happens to a connection elsewhere is an error here: connections that are
// refused and [Reset] are a [net.OpError] with [syscall.ECONNREFUSED] and
// [syscall.ECONNRESET], a connection that is closed without an answer is
// [io.EOF], and a request whose context is done returns the context's error.
// The timeouts and the header limit of the server do not apply, and there are no
// headers that net/http adds to a request on the way.
//
// It is safe for concurrent use.
type Transport struct {
	core
}

// NewTransport returns a transport that is up.
func NewTransport(opts ...Option) *Transport {
	o := newOptions(opts)
	return &Transport{core: core{window: window{interval: o.window}}}
}

// URL returns a URL to give to what is under test. Any other serves as well.
func (t *Transport) URL() string { return "http://notification-controller.test" }

// Client returns a new client that uses the transport. It has no timeout.
func (t *Transport) Client() *http.Client { return &http.Client{Transport: t} }

// Close ends every request in progress, and refuses those to come. What the
// transport received can still be asked for. Every call after the first does
// nothing.
func (t *Transport) Close() { _ = t.enter(closed) }

// Down refuses connections from now on, until [Transport.Up]. Requests in
// progress end without an answer. What the transport received and what it
// remembers of duplicates stays.
func (t *Transport) Down() { _ = t.enter(down) }

// Up takes connections again. It returns an error if the transport is closed.
func (t *Transport) Up() error {
	if err := t.enter(serving); err != nil {
		return fmt.Errorf("eventstest: Up after Close: %w", err)
	}
	return nil
}

// RoundTrip answers the request. It implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer func() { _ = req.Body.Close() }()
	}
	ctx := req.Context()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	answer := &memoryWriter{header: make(http.Header)}
	err := t.handle(answer, serverRequest(req))
	switch {
	case err == errDown:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err == errReset:
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	case err != nil:
		return nil, io.EOF
	}
	return answer.response(req), nil
}

// serverRequest is the request as a server sees it. Nothing a Behavior does to
// it reaches the client.
func serverRequest(req *http.Request) *http.Request {
	r := req.Clone(req.Context())
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.Host == "" {
		r.Host = r.URL.Host
	}
	if r.URL.Path == "" {
		r.URL.Path = "/"
	}
	r.RequestURI = r.URL.RequestURI()
	return r
}

// memoryWriter is an http.ResponseWriter that keeps the answer.
type memoryWriter struct {
	header http.Header
	sent   http.Header // the header as it was when the status was written
	status int
	body   bytes.Buffer
}

func (w *memoryWriter) Header() http.Header { return w.header }

func (w *memoryWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status, w.sent = status, w.header.Clone()
	}
}

func (w *memoryWriter) Write(b []byte) (int, error) { return w.body.Write(b) }

func (w *memoryWriter) response(req *http.Request) *http.Response {
	w.sent.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	return &http.Response{
		Status:        fmt.Sprintf("%d %s", w.status, http.StatusText(w.status)),
		StatusCode:    w.status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        w.sent,
		Body:          io.NopCloser(&w.body),
		ContentLength: int64(w.body.Len()),
		Request:       req,
	}
}
