package main

import (
	"cmp"
	"slices"
	"syscall"
	"time"
)

// quantile returns the q-quantile of the samples, which it sorts.
func quantile[T cmp.Ordered](samples []T, q float64) T {
	slices.Sort(samples)
	return samples[min(int(q*float64(len(samples))), len(samples)-1)]
}

func median[T cmp.Ordered](samples []T) T { return quantile(samples, 0.5) }

// spread returns the largest of the samples divided by the smallest.
func spread[T ~int | ~int64 | ~float64](samples []T) float64 {
	return float64(slices.Max(samples)) / float64(slices.Min(samples))
}

// minRuns is the least number of runs behind a number of the table.
const minRuns = 5

// runs is how often a recorder is run for a row.
func (s scale) runs() int {
	if s.quick {
		return 1
	}
	return minRuns
}

// middle shows the median and, if there is more than one sample, the middle half.
func middle[T cmp.Ordered](samples []T, show func(T) string) string {
	m := show(median(samples))
	low, high := show(quantile(samples, 0.25)), show(quantile(samples, 0.75))
	if low == high {
		return m
	}
	return m + " (" + low + " to " + high + ")"
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// within runs f, and reports whether it ended within the budget. It does not
// stop f, which goes on behind it.
func within(budget time.Duration, f func()) (took time.Duration, ended bool) {
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(budget)
	defer timer.Stop()
	select {
	case <-done:
		return time.Since(began), true
	case <-timer.C:
		return budget, false
	}
}
