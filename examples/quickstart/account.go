package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eventrecorder/events/eventstest"
)

// metrics are the numbers that the recorder exposes.
type metrics struct {
	recorded int
	pending  int
	outcomes map[string]int
}

// sum is how many events are pending or have an outcome.
func (m metrics) sum() int {
	sum := m.pending
	for _, n := range m.outcomes {
		sum += n
	}
	return sum
}

func (t *tracker) readMetrics() metrics {
	m := metrics{outcomes: make(map[string]int)}
	families, err := t.registry.Gather()
	if err != nil {
		panic(err) // the registry is ours, and holds the recorder's metrics only
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch family.GetName() {
			case "event_recorder_recorded_total":
				m.recorded += int(metric.GetCounter().GetValue())
			case "event_recorder_pending_events":
				m.pending += int(metric.GetGauge().GetValue())
			case "event_recorder_events_total":
				for _, label := range metric.GetLabel() {
					if label.GetName() == "outcome" {
						m.outcomes[label.GetValue()] += int(metric.GetCounter().GetValue())
					}
				}
			}
		}
	}
	return m
}

// summary prints what became of the events, and returns an error if one of them
// is unaccounted for. written is the number of Kubernetes events.
func (t *tracker) summary(written int, embedded *eventstest.Endpoint) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.readMetrics()
	var calls []time.Duration
	var open []int
	for _, r := range t.rows {
		calls = append(calls, r.call)
		if r.outcome == "" {
			open = append(open, r.number)
		}
	}
	slices.Sort(calls)

	t.timeline.summary(m, calls, open, written)
	err := m.check(t.rows)
	if embedded != nil {
		taken := len(embedded.Events())
		t.timeline.printf("The endpoint has taken %d events.\n", taken)
		// An answer may get lost when the endpoint goes down: then it has
		// taken an event that is a duplicate at the next attempt.
		if d := m.outcomes["delivered"]; taken < d || taken > d+m.outcomes["duplicate"] {
			err = errors.Join(err, fmt.Errorf("%d events were delivered, the endpoint has taken %d", d, taken))
		}
	}
	if err == nil {
		t.timeline.printf("Every event is accounted for.\n")
	}
	return err
}

// check compares the metrics with each other and with the events that were
// followed one by one.
func (m metrics) check(rows []*row) error {
	var errs []error
	if m.recorded != m.sum() {
		errs = append(errs, fmt.Errorf("%d events recorded, but %d have an outcome or are pending", m.recorded, m.sum()))
	}
	if m.recorded != len(rows) {
		errs = append(errs, fmt.Errorf("%d calls, but %d events recorded", len(rows), m.recorded))
	}
	seen := make(map[string]int)
	for _, r := range rows {
		seen[r.outcome]++
	}
	for _, outcome := range []string{"delivered", "duplicate", "coalesced", "rejected"} {
		if seen[outcome] != m.outcomes[outcome] {
			errs = append(errs, fmt.Errorf("%d events counted as %s, but %d seen", m.outcomes[outcome], outcome, seen[outcome]))
		}
	}
	// What remains is lost, and the summary says why. The sums above leave no
	// room for an event that is neither.
	return errors.Join(errs...)
}
