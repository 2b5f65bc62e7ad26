package main

import (
	"cmp"
	"slices"
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
