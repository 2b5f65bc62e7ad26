package story

import (
	"errors"
	"fmt"
	"time"
)

// Plan says how long the parts of the story take, as real durations.
type Plan struct {
	// Minute is how long a minute of the story takes.
	Minute time.Duration

	// AReady is when A becomes ready, since the start: two and a quarter
	// minutes, which lies between two checks of B.
	AReady time.Duration

	// RetryInterval is how long B waits before it checks A again: 30 seconds,
	// kustomize-controller's --requeue-dependency.
	RetryInterval time.Duration

	// RetryAfter is what the endpoint says with a 429, in whole seconds: five
	// minutes, notification-controller's --rate-limit-interval.
	RetryAfter time.Duration

	// WaitMin and WaitMax are the waits of a recorder between two attempts:
	// one second and 30, the defaults of go-retryablehttp.
	WaitMin, WaitMax time.Duration
}

// NewPlan returns the plan of a story that takes so long for each minute. A
// Retry-After header holds nothing but whole seconds, so five minutes of the
// story must be that: it returns an error unless minute is a multiple of 200
// milliseconds.
func NewPlan(minute time.Duration) (Plan, error) {
	const unit = 200 * time.Millisecond
	if minute <= 0 || minute%unit != 0 {
		return Plan{}, fmt.Errorf("a minute of the story takes %v: must be a multiple of %v", minute, unit)
	}
	return Plan{
		Minute:        minute,
		AReady:        2*minute + minute/4,
		RetryInterval: minute / 2,
		RetryAfter:    5 * minute,
		WaitMin:       minute / 60,
		WaitMax:       minute / 2,
	}, nil
}

// Told is how long a real duration is in the story.
func (p Plan) Told(d time.Duration) time.Duration {
	return time.Duration(float64(d) / float64(p.Minute) * float64(time.Minute))
}

// slack is what a busy machine may add to each of the promises.
func (p Plan) slack() time.Duration { return max(p.RetryInterval/2, 250*time.Millisecond) }

// Blocked returns the call to the recorder that kept its worker longest, and
// whether that was long enough to blame the endpoint.
func (p Plan) Blocked(t *Timeline) (Moment, bool) {
	call := t.LongestCall()
	return call, call.Took > p.slack()
}

// Kept returns an error unless the timeline keeps the promise: B is ready within
// one retry interval of A, no call to the recorder waited for the endpoint, and
// the endpoint was told that both are ready. Call it when the recorder has been
// flushed or shut down.
func (p Plan) Kept(t *Timeline) error {
	a, readyA := t.ReadyAt(NameA)
	b, readyB := t.ReadyAt(NameB)
	if !readyA || !readyB {
		return fmt.Errorf("A ready: %t, B ready: %t, want both", readyA, readyB)
	}
	var errs []error
	if late := b - a; late > p.RetryInterval+p.slack() {
		errs = append(errs, fmt.Errorf("B became ready %v after A, want at most one retry interval of %v", late, p.RetryInterval))
	}
	if call, blocked := p.Blocked(t); blocked {
		errs = append(errs, fmt.Errorf("a call to the recorder took %v, want no wait for the endpoint", call.Took))
	}
	for _, object := range []string{NameA, NameB} {
		if !t.told(object, ReasonSucceeded) {
			errs = append(errs, fmt.Errorf("the endpoint was not told that %s is ready", object))
		}
	}
	return errors.Join(errs...)
}
