package main

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
)

// The cost of an event in a queue that grows: the same number of events about
// one object, a hundred, and so on, while the endpoint hangs, so that all of
// them stay. Time is that of the recording calls, garbage collection included, and
// memory is what is live afterwards. The rounds take turns, and what counts is the
// median of the ratios within a round. No Kubernetes events are written.

// measureGrowth fills the rows about growth.
func measureGrowth(r *report, s scale) error {
	ep, err := serve(hang)
	if err != nil {
		return err
	}
	defer ep.close()
	// One object takes all names in turn, so that objects cost the caller the
	// same however many there are.
	names := make([]string, slices.Max(s.objects))
	for i := range names {
		names[i] = fmt.Sprintf("podinfo-%06d", i)
	}
	times, sizes := make(map[int][]time.Duration), make(map[int][]float64)
	for round := range s.growthRounds {
		for i := range s.objects {
			objects := s.objects[(i+round)%len(s.objects)]
			took, bytes, err := grow(ep.url, names[:objects], s.growthEvents)
			if err != nil {
				return err
			}
			times[objects] = append(times[objects], took/time.Duration(s.growthEvents))
			sizes[objects] = append(sizes[objects], float64(bytes)/float64(s.growthEvents))
		}
	}
	base := s.objects[1] // a hundred
	var slower, larger float64
	for _, objects := range s.objects {
		took, size := median(times[objects]), median(sizes[objects])
		r.row(fmt.Sprintf("an event in a queue of %s about %s: time and memory", count(s.growthEvents), countObjects(objects))).
			set(ours, "%s, %s bytes", duration(took), count(int(size)))
		if objects < base {
			continue
		}
		slower = max(slower, median(ratios(times[objects], times[base])))
		larger = max(larger, median(ratios(sizes[objects], sizes[base])))
	}
	most, of := countObjects(slices.Max(s.objects)), countObjects(base)
	r.goal(slower <= 1.3, "time of an event about one of up to "+most+" within 1.3 of that with "+of, "%.2f", slower)
	r.goal(larger <= 1.15, "memory of an event about one of up to "+most+" within 1.15 of that with "+of, "%.2f", larger)
	return nil
}

// ratios divides what was measured in the same round.
func ratios[T ~int64 | ~float64](samples, base []T) []float64 {
	var each []float64
	for i := range samples {
		each = append(each, float64(samples[i])/float64(base[i]))
	}
	return each
}

// grow records events about objects of these names in turn, and returns the time
// of the calls and the memory that is held afterwards.
func grow(url string, names []string, total int) (took time.Duration, bytes int, err error) {
	r, err := newOurRecorder(url, nil, silent(), events.WithQueueBytes(1<<30))
	if err != nil {
		return 0, 0, err
	}
	defer r.stop()
	object := pod("")
	runtime.GC()
	runtime.GC()
	before, _ := usage()
	began := time.Now()
	for i := range total {
		object.Name = names[i%len(names)]
		r.AnnotatedEventf(object, annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
	}
	took = time.Since(began)
	runtime.GC()
	runtime.GC()
	after, _ := usage()
	numbers, err := gather(r.metrics)
	if err != nil {
		return 0, 0, err
	}
	if pending := int(numbers["pending_events"]); pending != total {
		return 0, 0, fmt.Errorf("%d events are pending of %d", pending, total)
	}
	return took, after - before, nil
}
