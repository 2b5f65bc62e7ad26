package events

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is what became of an event that was meant for the endpoint. Every
// such event ends in exactly one.
type outcome int

const (
	delivered outcome = iota // answered 2xx
	duplicate                // answered 429: the endpoint has it already
	coalesced                // folded into a later event that says the same
	rejected                 // refused for good
	exhausted                // failed on the last attempt
	overflow                 // dropped because the queue was full
	expired                  // dropped because it was too old
	invalid                  // no reference to its object could be made
	shutdown                 // left when the drain ended, or recorded later

	outcomes int = iota
)

var outcomeNames = [outcomes]string{
	"delivered", "duplicate", "coalesced", "rejected", "exhausted", "overflow", "expired", "invalid", "shutdown",
}

func (o outcome) String() string { return outcomeNames[o] }

// counts are the numbers of all recorders that share a controller's name and a
// registry. record and settle each keep the sum: what was recorded is what is
// pending and what has an outcome.
type counts struct {
	mu       sync.Mutex // guards all below, and is the last lock anyone takes
	recorded uint64
	outcomes [outcomes]uint64
	pending  int
	bytes    int
	outages  int                 // recorders that cannot reach their endpoint
	queues   map[*queue]struct{} // those with pending events
}

// record counts an event that is pending from now on.
func (c *counts) record() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recorded++
	c.pending++
}

// settle counts the outcome of a pending event.
func (c *counts) settle(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending--
	c.outcomes[o]++
}

// hold counts bytes that a queue has taken or, if negative, given back.
func (c *counts) hold(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += bytes
}

// active remembers the queues that have pending events, and no others: an idle
// recorder is not kept alive by its metrics.
func (c *counts) active(q *queue, active bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if active {
		c.queues[q] = struct{}{}
	} else {
		delete(c.queues, q)
	}
}

// outage counts the recorders that cannot reach their endpoint.
func (c *counts) outage(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outages += change
}

// collector exposes the counts of all recorders that use one registry.
type collector struct {
	recorded, events, pending, bytes, oldest, up *prometheus.Desc

	attempts *prometheus.CounterVec
	duration *prometheus.HistogramVec

	mu          sync.Mutex
	controllers map[string]*counts
}

func newCollector() *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("event_recorder_"+name, help, append([]string{"controller"}, labels...), nil)
	}
	return &collector{
		recorded: desc("recorded_total", "Events recorded for the notification endpoint."),
		events:   desc("events_total", "Events by what became of them.", "outcome"),
		pending:  desc("pending_events", "Events that wait for the notification endpoint, those being posted included."),
		bytes:    desc("pending_bytes", "Memory that the pending events hold, in bytes."),
		oldest:   desc("oldest_pending_age_seconds", "Time since the oldest pending event was recorded, in seconds; 0 if none is pending."),
		up:       desc("endpoint_up", "0 while events are kept because the notification endpoint does not answer, else 1."),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "event_recorder_attempts_total",
			Help: `Attempts to post an event by the status code of the answer, "error" if there was none.`,
		}, []string{"controller", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "event_recorder_attempt_duration_seconds",
			Help:    "Time from the start of an attempt to the header of its answer or its failure, in seconds.",
			Buckets: prometheus.DefBuckets,
		}, []string{"controller"}),
		controllers: make(map[string]*counts),
	}
}

// registerCollector returns the registry's collector, registering one if this
// is the first recorder there.
func registerCollector(registerer prometheus.Registerer) (*collector, error) {
	c := newCollector()
	err := registerer.Register(c)
	if err == nil {
		return c, nil
	}
	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) {
		if existing, ok := registered.ExistingCollector.(*collector); ok {
			return existing, nil
		}
	}
	return nil, fmt.Errorf("events: cannot register the metrics: %w", err)
}

// of returns the counts of a controller.
func (c *collector) of(controller string) *counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.controllers[controller] == nil {
		c.controllers[controller] = &counts{queues: make(map[*queue]struct{})}
	}
	return c.controllers[controller]
}

// attempt counts an attempt. status is 0 if there was no answer.
func (c *collector) attempt(controller string, status int, took time.Duration) {
	code := "error"
	if status != 0 {
		code = strconv.Itoa(status)
	}
	c.attempts.WithLabelValues(controller, code).Inc()
	c.duration.WithLabelValues(controller).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.recorded, c.events, c.pending, c.bytes, c.oldest, c.up} {
		ch <- d
	}
	c.attempts.Describe(ch)
	c.duration.Describe(ch)
}

// Collect implements prometheus.Collector. What it says of one controller is
// true of one moment, but for the age of the oldest event.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	controllers := maps.Clone(c.controllers)
	c.mu.Unlock()

	now := time.Now()
	for name, counts := range controllers {
		s := counts.snapshot()
		counter := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{name}, labels...)...)
		}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, name)
		}
		counter(c.recorded, float64(s.recorded))
		for o, n := range s.outcomes {
			counter(c.events, float64(n), outcome(o).String())
		}
		gauge(c.pending, float64(s.pending))
		gauge(c.bytes, float64(s.bytes))
		gauge(c.oldest, s.oldestAge(now).Seconds())
		up := 1.0
		if s.outages > 0 {
			up = 0
		}
		gauge(c.up, up)
	}
	c.attempts.Collect(ch)
	c.duration.Collect(ch)
}

// snapshot is what counts said at one moment.
type snapshot struct {
	recorded                uint64
	outcomes                [outcomes]uint64
	pending, bytes, outages int
	queues                  []*queue
}

func (c *counts) snapshot() snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := snapshot{recorded: c.recorded, outcomes: c.outcomes, pending: c.pending, bytes: c.bytes, outages: c.outages}
	for q := range c.queues {
		s.queues = append(s.queues, q)
	}
	return s
}

// oldestAge asks the queues, without counts.mu: they take it under their own lock.
func (s *snapshot) oldestAge(now time.Time) time.Duration {
	var age time.Duration
	for _, q := range s.queues {
		if at, ok := q.oldest(); ok {
			age = max(age, now.Sub(at))
		}
	}
	return age
}

// controllerLabel is the name of a controller as a label value, which must be
// valid UTF-8: one that is not would make every scrape fail.
func controllerLabel(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }
