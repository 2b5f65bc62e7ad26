package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// The order in which events about one object are taken by an endpoint that
// fails one request in ten, with 503, 500 or a reset connection. Each object has
// a goroutine that records its events one after the other, with a pause, as a
// reconciler would. An event is out of order if it is taken after one about the
// same object that was recorded later.

// measureOrder fills the rows about order.
func measureOrder(r *report, s scale) error {
	total := s.orderObjects * s.orderEvents
	prefix := count(total) + " events, 1 request in 10 fails: "
	order := r.row(prefix + "taken out of order")
	lost := r.row(prefix + "lost")
	compared := []column{ours, fluxPeer, goroutine}
	results := make(map[column][]ordered)
	var mu sync.Mutex
	for range s.runs() {
		var running errgroup.Group // they wait more than they work
		for _, c := range compared {
			running.Go(func() error {
				result, err := measureOrderOf(c, s)
				if err != nil {
					return fmt.Errorf("%v: %w", c, err)
				}
				mu.Lock()
				defer mu.Unlock()
				results[c] = append(results[c], result)
				return nil
			})
		}
		if err := running.Wait(); err != nil {
			return err
		}
	}
	var our ordered // in all runs
	for _, c := range compared {
		var violations, losses []int
		for _, result := range results[c] {
			violations, losses = append(violations, result.violations), append(losses, result.lost)
			if c == ours {
				our.violations += result.violations
				our.lost += result.lost
				our.counted += result.counted
			}
		}
		order.set(c, "%s", count(median(violations)))
		lost.set(c, "%s", none(median(losses)))
	}
	r.goal(our.violations == 0, "no event out of order, in any run", "%s of %s", none(our.violations), count(total*s.runs()))
	r.goal(our.lost == our.counted, "every loss to an unreliable endpoint counted", "%s of %s", none(our.counted), none(our.lost))
	r.note("Order: after five failures in a row the peer and the goroutines give an event up. This library gives it up, " +
		"as exhausted in its metrics, after ten failures or more while the endpoint serves others.")
	return nil
}

type ordered struct{ violations, lost, counted int }

func measureOrderOf(c column, s scale) (result ordered, err error) {
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	ep.Behave(unreliable())
	r, err := newRecorder(c, ep.URL(), nil, silent(), events.WithConcurrency(min(s.orderObjects, 256)))
	if err != nil {
		return result, err
	}
	defer r.stop()

	var callers sync.WaitGroup
	for object := range s.orderObjects {
		callers.Go(func() {
			pause := time.NewTicker(s.pace)
			defer pause.Stop()
			involved := pod("podinfo-" + count(object))
			for i := range s.orderEvents {
				r.AnnotatedEventf(involved, annotations, corev1.EventTypeNormal, "Progressing", "%d", i)
				<-pause.C
			}
		})
	}
	callers.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := r.wait(ctx); err != nil {
		return result, err
	}

	latest := make(map[string]int)
	taken := ep.Events()
	for _, e := range taken {
		var i int
		if _, err := fmt.Sscanf(e.Message, "%d", &i); err != nil {
			return result, err
		}
		name := e.InvolvedObject.Name
		if at, ok := latest[name]; ok && i < at {
			result.violations++
			continue
		}
		latest[name] = i
	}
	result.lost = s.orderObjects*s.orderEvents - len(taken)
	if our, ok := r.(ourRecorder); ok {
		numbers, err := gather(our.metrics)
		if err != nil {
			return result, err
		}
		result.counted = int(numbers["events_total exhausted"])
	}
	return result, nil
}

// unreliable fails one request in ten.
func unreliable() eventstest.Behavior {
	failures := []eventstest.Behavior{
		eventstest.Status(http.StatusServiceUnavailable),
		eventstest.Status(http.StatusInternalServerError),
		eventstest.Reset(),
	}
	return func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		if n := rand.N(10 * len(failures)); n < len(failures) {
			failures[n](w, r, normal)
			return
		}
		normal.ServeHTTP(w, r)
	}
}
