package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events/eventstest"
)

// The time from the endpoint's return to the last delivery. The events are
// recorded, each by a goroutine of its own as if so many workers reconciled,
// while the endpoint is down. The outage is longer than the peer retries. Several
// recorders of each kind go through outages of different lengths, at the same time:
// they wait more than they work.

// measureRecovery fills the row about recovery.
func measureRecovery(r *report, s scale) error {
	compared := []column{ours, fluxPeer, goroutine}
	results := make(map[column][]recovery)
	var mu sync.Mutex
	var running errgroup.Group
	for i := range s.runs() {
		for _, c := range compared {
			running.Go(func() error {
				result, err := recoverFrom(c, s, s.outage+time.Duration(i)*s.outage/16)
				if err != nil {
					return fmt.Errorf("%v: %w", c, err)
				}
				mu.Lock()
				defer mu.Unlock()
				results[c] = append(results[c], result)
				return nil
			})
		}
	}
	if err := running.Wait(); err != nil {
		return err
	}

	row := r.row(fmt.Sprintf("%s events pending, outage of %v and more: last delivery after the endpoint's return",
		count(s.recoveryEvents), s.outage))
	for _, c := range compared {
		var times []time.Duration
		var losses, logged []int
		for _, result := range results[c] {
			times, losses, logged = append(times, result.took), append(losses, result.lost), append(logged, result.logged)
		}
		lost := median(losses)
		said := "nothing says so"
		if n := median(logged); n > 0 {
			said = lines(n)
		}
		switch {
		case lost == s.recoveryEvents:
			row.set(c, "never: all %s lost, %s", count(lost), said)
		case lost > 0:
			row.set(c, "%s, %s lost, %s", duration(median(times)), count(lost), said)
		default:
			row.set(c, "%s (at most %s), none lost", duration(median(times)), duration(slices.Max(times)))
		}
		if c == ours {
			most := slices.Max(losses)
			r.goal(most == 0, "nothing lost in an outage that the queue has room for, in any run", "%s lost", none(most))
		}
	}
	r.note("Recovery: the peer and the goroutines retry for 15 s, so they survive a shorter outage; " +
		"to have so many events pending, the peer needs as many goroutines that wait in its calls.")
	return nil
}

func none(n int) string {
	if n == 0 {
		return "none"
	}
	return count(n)
}

type recovery struct {
	took   time.Duration // from the return to the last delivery
	lost   int
	logged int
}

func recoverFrom(c column, s scale, outage time.Duration) (result recovery, err error) {
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	ep.Down()
	log, logged := counting()
	r, err := newRecorder(c, ep.URL(), nil, log)
	if err != nil {
		return result, err
	}
	defer r.stop()

	down := time.NewTimer(outage)
	var calls sync.WaitGroup
	for i := range s.recoveryEvents {
		calls.Go(func() {
			r.AnnotatedEventf(pod("podinfo-"+count(i%s.recoveryObjects)), annotations,
				corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
		})
	}
	<-down.C
	back := time.Now()
	if err := ep.Up(); err != nil {
		return result, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	calls.Wait()
	if err := r.wait(ctx); err != nil {
		return result, err
	}
	requests := ep.Requests()
	if n := len(requests); n > 0 {
		result.took = requests[n-1].Time.Sub(back)
	}
	result.lost = s.recoveryEvents - len(ep.Events())
	result.logged = int(logged.Load())
	return result, nil
}
