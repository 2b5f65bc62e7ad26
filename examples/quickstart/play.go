package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/eventrecorder/events/eventstest"
)

// The outage, as parts of the replay. In the log that is built in it begins
// when kyverno-system waits for its dependency, and ends after the dependency
// has become ready: events of both are recorded meanwhile.
const (
	outageBegins = 0.10
	outageEnds   = 0.58
)

// step is something that happens in the replay.
type step struct {
	at time.Duration
	do func() error
}

// script is what the log says, at the time it says, and the outage of the
// embedded endpoint, if there is one.
func script(log *eventLog, pace pace, length time.Duration, tracker *tracker, embedded *eventstest.Endpoint) []step {
	var steps []step
	if embedded != nil {
		down := pace.offset(log.span * outageBegins)
		// A log of one moment has an outage too, and its events meet it.
		up := max(pace.offset(log.span*outageEnds), down+length/4)
		steps = append(steps,
			step{down, func() error {
				tracker.timeline.note("The endpoint goes down: connections are refused.")
				embedded.Down()
				return nil
			}},
			step{up, func() error {
				tracker.timeline.note("The endpoint is back.")
				return embedded.Up()
			}})
	}
	for _, e := range log.entries {
		steps = append(steps, step{pace.offset(e.at), func() error {
			if e.complaints > 0 {
				tracker.timeline.complaints(e)
				return nil
			}
			tracker.record(e)
			return nil
		}})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return steps
}

// play does each step at its time.
func play(ctx context.Context, steps []step) error {
	began := time.Now()
	for _, s := range steps {
		select {
		case <-time.After(time.Until(began.Add(s.at))):
		case <-ctx.Done():
			return errors.New("interrupted")
		}
		if err := s.do(); err != nil {
			return err
		}
	}
	return nil
}

// object is what a kustomize-controller records events about. A controller
// passes the Kustomization itself; a reference to it serves as well.
func object(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "kustomize.toolkit.fluxcd.io/v1",
		Kind:       "Kustomization",
		Namespace:  "flux-system",
		Name:       name,
	}
}

// eventType is Warning for what has failed. A dependency that is not ready is
// no failure to a kustomize-controller.
func eventType(e entry) string {
	if e.failed || strings.HasSuffix(e.reason, "Failed") || strings.HasSuffix(e.reason, "Error") {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}

// kubernetesEvents counts the events that client-go's broadcaster hands out.
type kubernetesEvents chan struct{}

func countKubernetesEvents(broadcaster record.EventBroadcaster) kubernetesEvents {
	k := make(kubernetesEvents, maxEvents)
	broadcaster.StartEventWatcher(func(*corev1.Event) { k <- struct{}{} })
	return k
}

// wait waits for n events, since the broadcaster has a goroutine of its own and
// may drop some, and returns how many there were.
func (k kubernetesEvents) wait(n int) int {
	timeout := time.After(broadcasterLagsBy)
	for i := range n {
		select {
		case <-k:
		case <-timeout:
			return i
		}
	}
	return n
}
