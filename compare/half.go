package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
)

// The events that are lost to an endpoint of which one of two backends is gone,
// as behind a Service whose endpoints are not up to date: each post takes a new
// connection, and of two connections one is reset before anything is read. As many
// goroutines as there are objects record their events one after the other.

// measureHalf fills the row about a half-broken endpoint.
func measureHalf(r *report, s scale) error {
	total := s.halfObjects * s.halfEvents
	compared := []column{ours, fluxPeer, goroutine}
	type result struct {
		lost int
		took time.Duration
	}
	results := make(map[column][]result)
	var mu sync.Mutex
	var running errgroup.Group // they wait more than they work
	for range s.runs() {
		for _, c := range compared {
			running.Go(func() error {
				lost, took, err := halfOf(c, s)
				if err != nil {
					return fmt.Errorf("%v: %w", c, err)
				}
				mu.Lock()
				defer mu.Unlock()
				results[c] = append(results[c], result{lost, took})
				return nil
			})
		}
	}
	if err := running.Wait(); err != nil {
		return err
	}
	row := r.row(count(total) + " events, 1 of 2 backends refuses: lost (time to the last one)")
	for _, c := range compared {
		var losses []int
		var times []time.Duration
		for _, got := range results[c] {
			losses, times = append(losses, got.lost), append(times, got.took)
		}
		row.set(c, "%s (%s)", none(median(losses)), duration(median(times)))
		if c == ours {
			most := slices.Max(losses)
			r.goal(most <= 1, "at most 1 event lost to a half-broken endpoint, in any run", "%s of %s", none(most), count(total))
		}
	}
	r.note("Half-broken endpoint: the peer's callers are blocked meanwhile, here one for each of %d objects.", s.halfObjects)
	return nil
}

// halfOf returns how many events were lost, and how long it took until the
// recorder had done with all.
func halfOf(c column, s scale) (lost int, took time.Duration, err error) {
	var taken atomic.Int64
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		taken.Add(1)
		w.WriteHeader(http.StatusAccepted)
	})}
	server.SetKeepAlivesEnabled(false)
	defer server.Close()
	go func() { _ = server.Serve(halfListener{listener}) }()

	r, err := newRecorder(c, "http://"+listener.Addr().String(), nil, silent())
	if err != nil {
		return 0, 0, err
	}
	defer r.stop()
	began := time.Now()
	var callers sync.WaitGroup
	for object := range s.halfObjects {
		callers.Go(func() {
			involved := pod("podinfo-" + count(object))
			for i := range s.halfEvents {
				r.AnnotatedEventf(involved, annotations, corev1.EventTypeNormal, "Progressing", "%d", i)
			}
		})
	}
	callers.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	err = r.wait(ctx)
	return s.halfObjects*s.halfEvents - int(taken.Load()), time.Since(began), err
}

// halfListener resets every other connection, at random.
type halfListener struct{ net.Listener }

func (l halfListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || rand.N(2) == 0 {
			return conn, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = conn.Close()
	}
}
