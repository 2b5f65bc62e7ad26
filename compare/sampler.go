package main

import (
	"runtime"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// sampler watches memory and goroutines.
type sampler struct {
	heap, goroutines int // at the start
	peak, most       atomic.Int64
	quit, done       chan struct{}
}

// startSampler starts from a heap without garbage.
func startSampler() *sampler {
	runtime.GC()
	runtime.GC()
	s := &sampler{quit: make(chan struct{}), done: make(chan struct{})}
	s.heap, s.goroutines = usage()
	s.goroutines += 2 // its own, and that of the calls
	go func() {
		defer close(s.done)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			heap, goroutines := usage()
			s.peak.Store(max(s.peak.Load(), int64(heap)))
			s.most.Store(max(s.most.Load(), int64(goroutines)))
			select {
			case <-tick.C:
			case <-s.quit:
				return
			}
		}
	}()
	return s
}

// stop returns the peaks of memory, garbage included, and of goroutines, above
// the start.
func (s *sampler) stop() (bytes, goroutines int) {
	close(s.quit)
	<-s.done
	return max(int(s.peak.Load())-s.heap, 0), max(int(s.most.Load())-s.goroutines, 0)
}

// live returns how much memory is in use above the start, without garbage.
func (s *sampler) live() (bytes int) {
	runtime.GC()
	runtime.GC()
	heap, _ := usage()
	return max(heap-s.heap, 0)
}

// usage returns the bytes that objects and stacks hold, garbage included, and
// the number of goroutines. It does not stop the world.
func usage() (bytes, goroutines int) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
		{Name: "/sched/goroutines:goroutines"},
	}
	metrics.Read(samples)
	return int(samples[0].Value.Uint64() + samples[1].Value.Uint64()), int(samples[2].Value.Uint64())
}

// gather reads our recorder's metrics: names without their prefix, with the
// outcome where there is one.
func gather(registry *prometheus.Registry) (map[string]float64, error) {
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	numbers := make(map[string]float64)
	for _, family := range families {
		for _, metric := range family.Metric {
			name := strings.TrimPrefix(family.GetName(), "event_recorder_")
			for _, label := range metric.Label {
				if label.GetName() == "outcome" {
					name += " " + label.GetValue()
				}
			}
			switch {
			case metric.Counter != nil:
				numbers[name] = metric.Counter.GetValue()
			case metric.Gauge != nil:
				numbers[name] = metric.Gauge.GetValue()
			}
		}
	}
	return numbers, nil
}
