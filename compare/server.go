package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// server is an endpoint that costs as little as net/http allows. Package
// eventstest has a better one, which keeps and decodes what it receives; it is
// used where speed is not what is measured.
type server struct {
	url         string
	http        *http.Server
	connections atomic.Int64 // ever accepted
}

// serve starts a server on a free port. The body is read before the handler is
// called.
func serve(handler func(w http.ResponseWriter, r *http.Request, body []byte)) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{url: "http://" + listener.Addr().String()}
	var buffers sync.Pool
	s.http = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			buffer, _ := buffers.Get().(*[]byte)
			if buffer == nil {
				buffer = new([]byte)
			}
			defer buffers.Put(buffer)
			if err := read(buffer, r); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			handler(w, r, *buffer)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				s.connections.Add(1)
			}
		},
	}
	go func() { _ = s.http.Serve(listener) }()
	return s, nil
}

func read(buffer *[]byte, r *http.Request) error {
	n := int(r.ContentLength)
	if n < 0 || n > 1<<20 {
		return errors.New("body of no or of an absurd length")
	}
	if cap(*buffer) < n {
		*buffer = make([]byte, n)
	}
	*buffer = (*buffer)[:n]
	_, err := io.ReadFull(r.Body, *buffer)
	if err == nil {
		// The end of the body has to be seen for net/http to watch the
		// connection, and so for the context of a request to end with it.
		_, err = r.Body.Read(make([]byte, 1))
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

func (s *server) close() { _ = s.http.Close() }

// answer is a handler that gives always the same answer.
func answer(status int) func(http.ResponseWriter, *http.Request, []byte) {
	return func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.WriteHeader(status)
		if status == http.StatusTooManyRequests {
			// As notification-controller does; see package eventstest.
			_, _ = io.WriteString(w, "Too Many Requests\n")
		}
	}
}

// hang is a handler that gives no answer.
func hang(_ http.ResponseWriter, r *http.Request, _ []byte) {
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// refusing returns the URL of a port on which nobody listens.
func refusing() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return "http://" + listener.Addr().String(), nil
}
