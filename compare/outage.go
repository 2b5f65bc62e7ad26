package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
)

// A hundred thousand events about a thousand objects while the endpoint refuses
// connections, recorded one after the other as fast as the calls return: memory
// and goroutines at their peak, above what there was before, what is lost, and
// who says so. A call of the peer blocks, so one is made and the rest is
// multiplied.
//
// Each recorder has a process of its own: the heap of one must not show in that
// of another, and a hundred thousand goroutines keep a process from doing
// anything else for a long time. Their client closes idle connections after each
// failure, and for that goes through all requests that wait for a connection.

const (
	outageObjects = 1000
	defaultLimit  = 16 << 20 // of our queue, in bytes
	limitForAll   = 256 << 20
)

// measureOutage fills the rows about an outage.
func measureOutage(r *report, s scale) error {
	url, err := refusing()
	if err != nil {
		return err
	}
	// The calls of the peer wait while the others work.
	var peers errgroup.Group
	ones := make([]outage, s.runs())
	for i := range ones {
		peers.Go(func() (err error) {
			ones[i], err = outageTask{Column: fluxPeer, URL: url, Events: 1, Budget: s.budget}.inChild()
			return err
		})
	}
	var ourRuns, allRuns, manyRuns []outage
	for range s.runs() {
		for _, run := range []struct {
			task outageTask
			to   *[]outage
		}{
			{outageTask{Column: ours, URL: url, Events: s.outageEvents, Limit: defaultLimit, Budget: s.budget}, &ourRuns},
			{outageTask{Column: ours, URL: url, Events: s.outageEvents, Limit: limitForAll, Budget: s.budget}, &allRuns},
			{outageTask{Column: goroutine, URL: url, Events: s.outageEvents, Budget: s.budget / 6}, &manyRuns},
		} {
			o, err := run.task.inChild()
			if err != nil {
				return err
			}
			*run.to = append(*run.to, o)
		}
	}
	if err := peers.Wait(); err != nil {
		return err
	}
	our, all, one, many := medianOutage(ourRuns), medianOutage(allRuns), medianOutage(ones), medianOutage(manyRuns)

	prefix := count(s.outageEvents) + " events while the endpoint refuses: "
	calls := r.row(prefix + "time of the calls")
	memory := r.row(prefix + "peak of heap and stacks (live afterwards)")
	running := r.row(prefix + "peak of goroutines")
	lost := r.row(prefix + "lost")
	said := r.row(prefix + "what says so")
	for c, o := range map[column]outage{ours: our, fluxPeer: one, goroutine: many} {
		calls.set(c, "%s", duration(o.Calls))
		if o.Calls == 0 {
			calls.set(c, "> %s", duration(o.Budget))
		}
		memory.set(c, "%s", mebibytes(o.Peak))
		running.set(c, "%s", count(o.Goroutines))
		said.set(c, "log: %s", lines(o.Logged))
	}
	memory.set(ours, "%s (%s)", mebibytes(our.Peak), mebibytes(our.Live))
	lost.set(ours, "%s, the oldest of each object; %s kept", count(our.Lost), count(our.Pending))
	said.set(ours, "metric: %s lost; log: %s", count(our.Lost), lines(our.Logged))
	if one.Ended {
		calls.set(fluxPeer, "%s for 1 call: %.0f days for all", duration(one.Calls), one.Calls.Hours()/24*float64(s.outageEvents))
		lost.set(fluxPeer, "each, after 5 attempts")
		said.set(fluxPeer, "log: %s for each", lines(one.Logged))
	}
	lost.set(goroutine, "all")
	if !many.Ended {
		lost.set(goroutine, "still busy after %s", duration(many.Budget))
	}
	said.set(goroutine, "nothing")

	uncounted := slices.ContainsFunc(ourRuns, func(o outage) bool { return o.Lost+o.Pending != s.outageEvents })
	r.goal(!uncounted, "every loss of the outage counted, in all runs", "%s lost and %s kept of %s recorded",
		count(our.Lost), count(our.Pending), count(s.outageEvents))
	r.goal(float64(our.Live) <= 1.25*defaultLimit, "memory of an outage within 1.25 times the limit of "+mebibytes(defaultLimit),
		"%s", mebibytes(our.Live))
	r.note("Outage: with WithQueueBytes(%d << 20) this library lost %s of the %s events and held %s at the peak, %s afterwards.",
		limitForAll>>20, none(all.Lost), count(s.outageEvents), mebibytes(all.Peak), mebibytes(all.Live))
	return nil
}

// medianOutage has the median of each number; it has ended if any has.
func medianOutage(runs []outage) outage {
	number := func(of func(outage) int) int {
		var numbers []int
		for _, o := range runs {
			numbers = append(numbers, of(o))
		}
		return median(numbers)
	}
	return outage{
		Budget:     runs[0].Budget,
		Ended:      slices.ContainsFunc(runs, func(o outage) bool { return o.Ended }),
		Calls:      time.Duration(number(func(o outage) int { return int(o.Calls) })),
		Peak:       number(func(o outage) int { return o.Peak }),
		Live:       number(func(o outage) int { return o.Live }),
		Goroutines: number(func(o outage) int { return o.Goroutines }),
		Lost:       number(func(o outage) int { return o.Lost }),
		Pending:    number(func(o outage) int { return o.Pending }),
		Logged:     number(func(o outage) int { return o.Logged }),
	}
}

func lines(n int) string {
	if n == 1 {
		return "1 error line"
	}
	return count(n) + " error lines"
}

// outageTask is what a child process does.
type outageTask struct {
	Column column
	URL    string
	Events int
	Limit  int // of our queue
	Budget time.Duration
}

// outage is what became of it.
type outage struct {
	Budget        time.Duration
	Ended         bool          // within the budget: the calls, and what they had started
	Calls         time.Duration // all of them; 0 if they did not end
	Peak, Live    int           // bytes
	Goroutines    int
	Lost, Pending int // as our metrics say
	Logged        int
}

// childEnv tells a process that it is a child, and what to do.
const childEnv = "COMPARE_OUTAGE"

// inChild does the task in a process of its own.
func (t outageTask) inChild() (o outage, err error) {
	task, err := json.Marshal(t)
	if err != nil {
		return o, err
	}
	self, err := os.Executable()
	if err != nil {
		return o, err
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), childEnv+"="+string(task))
	child.Stderr = os.Stderr
	out, err := child.Output()
	if err != nil {
		return o, fmt.Errorf("child process of %v: %w", t.Column, err)
	}
	return o, json.Unmarshal(out, &o)
}

// child does what the parent asks for, if there is a parent. The process must
// end then, whatever is still running.
func child() (was bool, err error) {
	if task := os.Getenv(killEnv); task != "" {
		return true, recordUntilKilled(task)
	}
	task := os.Getenv(childEnv)
	if task == "" {
		return false, nil
	}
	var t outageTask
	if err := json.Unmarshal([]byte(task), &t); err != nil {
		return true, err
	}
	o, err := t.do()
	if err != nil {
		return true, err
	}
	return true, json.NewEncoder(os.Stdout).Encode(o)
}

func (t outageTask) do() (o outage, err error) {
	log, logged := counting()
	var opts []events.Option
	if t.Limit > 0 {
		opts = append(opts, events.WithQueueBytes(t.Limit))
	}
	r, err := newRecorder(t.Column, t.URL, nil, log, opts...)
	if err != nil {
		return o, err
	}
	pods := make([]*corev1.Pod, outageObjects)
	for i := range pods {
		pods[i] = pod("podinfo-" + count(i))
	}

	o.Budget = t.Budget
	sampler := startSampler()
	var calls atomic.Int64
	_, o.Ended = within(t.Budget, func() {
		began := time.Now()
		for i := range t.Events {
			r.AnnotatedEventf(pods[i%outageObjects], annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
		}
		calls.Store(int64(time.Since(began)))
		if g, ok := r.(*goroutines); ok {
			g.running.Wait()
		}
	})
	o.Calls = time.Duration(calls.Load())
	o.Peak, o.Goroutines = sampler.stop()
	o.Logged = int(logged.Load())
	our, ok := r.(ourRecorder)
	if !ok {
		return o, nil
	}
	o.Live = sampler.live()
	numbers, err := gather(our.metrics)
	if err != nil {
		return o, err
	}
	o.Lost, o.Pending = int(numbers["events_total overflow"]), int(numbers["pending_events"])
	return o, nil
}
