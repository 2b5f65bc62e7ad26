package events

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is what became of an event that was meant for the endpoint. Every
// such event ends in exactly one.
type outcome int

const (
	delivered   outcome = iota // answered 2xx
	duplicate                  // answered 429: the endpoint has it already
	unconfirmed                // answered 429, after an attempt that got no answer
	coalesced                  // replaced by a later event that says the same
	rejected                   // refused for good
	exhausted                  // failed too often while others were served
	overflow                   // dropped because the queue was full
	expired                    // dropped because it was too old
	invalid                    // no reference to its object could be made
	saved                      // left in the journal when the drain ended
	shutdown                   // left when the drain ended, or recorded later

	outcomes int = iota
)

var outcomeNames = [outcomes]string{
	"delivered", "duplicate", "unconfirmed", "coalesced", "rejected", "exhausted", "overflow", "expired", "invalid", "saved", "shutdown",
}

func (o outcome) String() string { return outcomeNames[o] }

// counts are what all recorders that have a controller's name and a registry in
// common share: the numbers, and the limits of what is logged. What is pending is
// what was recorded and has no outcome yet, so the sum holds at every moment.
type counts struct {
	recorded atomic.Uint64
	outcomes [outcomes]atomic.Uint64
	attempts *prometheus.CounterVec
	codes    sync.Map // of int, the status of an attempt, to its prometheus.Counter
	duration prometheus.Observer
	losses   lossLog

	recovered     atomic.Uint64 // of those recorded, what an earlier process left
	journalErrors atomic.Uint64
	journalBytes  atomic.Int64

	mu      sync.Mutex          // guards all below
	queues  map[*queue]struct{} // those with pending events
	outages int                 // recorders with an outage
	since   time.Time           // when the first of them began
}

// settle counts the outcome of an event that was recorded.
func (c *counts) settle(o outcome) { c.outcomes[o].Add(1) }

// attempt counts an attempt. status is 0 if there was no answer.
func (c *counts) attempt(status int, took time.Duration) {
	counter, ok := c.codes.Load(status)
	if !ok {
		code := "error"
		if status != 0 {
			code = strconv.Itoa(status)
		}
		counter, _ = c.codes.LoadOrStore(status, c.attempts.WithLabelValues(code))
	}
	counter.(prometheus.Counter).Inc()
	c.duration.Observe(took.Seconds())
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

// outageBegins counts a recorder with an outage, and reports whether it is the
// only one.
func (c *counts) outageBegins(at time.Time) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outages++; c.outages > 1 {
		return false
	}
	c.since = at
	return true
}

// outageEnds is the opposite. It reports when the first outage began.
func (c *counts) outageEnds() (since time.Time, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outages--
	return c.since, c.outages == 0
}

// collector exposes the counts of all recorders that use one registry.
type collector struct {
	recorded, events, pending, bytes, oldest, up *prometheus.Desc
	recovered, journalErrors, journalBytes       *prometheus.Desc

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
		recorded:      desc("recorded_total", "Events recorded for the notification endpoint."),
		events:        desc("events_total", "Events by what became of them.", "outcome"),
		pending:       desc("pending_events", "Events that wait for the notification endpoint, those being posted included."),
		bytes:         desc("pending_bytes", "Memory that the pending events hold, in bytes."),
		oldest:        desc("oldest_pending_age_seconds", "Time since the oldest pending event was recorded, in seconds; 0 if none is pending."),
		up:            desc("endpoint_up", "0 while the notification endpoint has served no event for 10 s and events are kept, else 1."),
		recovered:     desc("recovered_total", "Events that an earlier process left in the journal; they are recorded too."),
		journalErrors: desc("journal_errors_total", "Times that the journal could not be read or written."),
		journalBytes:  desc("journal_bytes", "Size of the journal, in bytes."),
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
	of := c.controllers[controller]
	if of == nil {
		of = &counts{
			attempts: c.attempts.MustCurryWith(prometheus.Labels{"controller": controller}),
			duration: c.duration.WithLabelValues(controller),
			queues:   make(map[*queue]struct{}),
		}
		c.controllers[controller] = of
	}
	return of
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.recorded, c.events, c.pending, c.bytes, c.oldest, c.up,
		c.recovered, c.journalErrors, c.journalBytes} {
		ch <- d
	}
	c.attempts.Describe(ch)
	c.duration.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	controllers := maps.Clone(c.controllers)
	c.mu.Unlock()

	for name, counts := range controllers {
		s := counts.snapshot()
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{name}, labels...)...)
		}
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, name)
		}
		counter(c.recorded, s.recorded)
		for o, n := range s.outcomes {
			counter(c.events, n, outcome(o).String())
		}
		gauge(c.pending, float64(s.pending))
		gauge(c.bytes, float64(s.bytes))
		gauge(c.oldest, s.oldestAge.Seconds())
		gauge(c.up, s.up)
		counter(c.recovered, counts.recovered.Load())
		counter(c.journalErrors, counts.journalErrors.Load())
		gauge(c.journalBytes, float64(counts.journalBytes.Load()))
	}
	c.attempts.Collect(ch)
	c.duration.Collect(ch)
}

// snapshot is what counts say at one moment.
type snapshot struct {
	recorded, pending uint64
	outcomes          [outcomes]uint64
	up                float64
	bytes             int
	oldestAge         time.Duration
}

func (c *counts) snapshot() (s snapshot) {
	// The outcomes first: what gets one meanwhile was recorded before.
	for o := range c.outcomes {
		s.outcomes[o] = c.outcomes[o].Load()
		s.pending -= s.outcomes[o]
	}
	s.recorded = c.recorded.Load()
	s.pending += s.recorded

	c.mu.Lock()
	queues := slices.Collect(maps.Keys(c.queues))
	if c.outages == 0 {
		s.up = 1
	}
	c.mu.Unlock()
	// Without mu: a queue takes it under its own lock.
	now := time.Now()
	for _, q := range queues {
		bytes, oldest := q.held()
		s.bytes += bytes
		if !oldest.IsZero() {
			s.oldestAge = max(s.oldestAge, now.Sub(oldest))
		}
	}
	return s
}

// controllerLabel is the name of a controller as a label value, which must be
// valid UTF-8: one that is not would make every scrape fail.
func controllerLabel(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }
