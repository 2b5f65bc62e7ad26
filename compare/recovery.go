package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events/eventstest"
)

// The time from the endpoint's return to the last delivery. The events are
// recorded, each by a goroutine of its own as if so many workers reconciled,
// while the endpoint is down. The outage is longer than the peer retries. Several
// of our recorders go through outages of different lengths, at the same time,
// since the retries of a recorder may be anywhere in their waits when the
// endpoint comes back.

// measureRecovery fills the row about recovery.
func measureRecovery(r *report, s scale) error {
	const ourRuns = 5
	type result struct {
		column   column
		recovery recovery
		err      error
	}
	results := make(chan result)
	start := func(c column, outage time.Duration) {
		go func() {
			rec, err := recoverFrom(c, s, outage)
			results <- result{c, rec, err}
		}()
	}
	for i := range ourRuns {
		start(ours, s.outage+time.Duration(i)*s.outage/16)
	}
	start(fluxPeer, s.outage)
	start(goroutine, s.outage)

	row := r.row(fmt.Sprintf("%s events pending, outage of %v and more: last delivery after the endpoint's return",
		count(s.recoveryEvents), s.outage))
	var times []time.Duration
	lost := 0
	for range ourRuns + 2 {
		got := <-results
		if got.err != nil {
			return got.err
		}
		if got.column == ours {
			times = append(times, got.recovery.took)
			lost += got.recovery.lost
			continue
		}
		said := "nothing says so"
		if got.recovery.logged > 0 {
			said = lines(got.recovery.logged)
		}
		switch {
		case got.recovery.lost == s.recoveryEvents:
			row.set(got.column, "never: all %s lost, %s", count(got.recovery.lost), said)
		case got.recovery.lost > 0:
			row.set(got.column, "%s, %s lost, %s", duration(got.recovery.took), count(got.recovery.lost), said)
		default:
			row.set(got.column, "%s, none lost", duration(got.recovery.took))
		}
	}
	row.set(ours, "%s (at most %s), %s lost", duration(median(times)), duration(slices.Max(times)), none(lost))
	r.goal(lost == 0, "nothing lost in an outage that the queue has room for", "%s lost", none(lost))
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
