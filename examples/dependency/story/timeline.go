package story

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// Kind says what happened at a moment.
type Kind int

// The kinds of moments.
const (
	Recorded Kind = iota // a call to the recorder began
	Answered             // an attempt to post an event ended
	Ready                // an object became ready
	Down                 // the endpoint became unreachable
	Up                   // the endpoint came back
)

// Moment is something that happened in the story.
type Moment struct {
	At     time.Duration // since the start
	Kind   Kind
	Object string        // that it is about; empty for Down and Up
	Reason string        // of the event, for Recorded and Answered
	Took   time.Duration // for Recorded: how long the caller waited
	Status int           // for Answered: of the answer, 0 if there was none
}

// Timeline collects what happens while the story is told. It is safe for
// concurrent use, and a nil Timeline collects nothing.
type Timeline struct {
	mu      sync.Mutex // guards all below
	began   time.Time
	moments []Moment
	changed chan struct{} // closed and replaced when an object becomes ready
}

// NewTimeline returns a timeline that begins now.
func NewTimeline() *Timeline {
	return &Timeline{began: time.Now(), changed: make(chan struct{})}
}

// Begin makes the timeline begin now.
func (t *Timeline) Begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began = time.Now()
}

func (t *Timeline) note(at time.Time, m Moment) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m.At = at.Sub(t.began)
	t.moments = append(t.moments, m)
	if m.Kind == Ready {
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

func (t *Timeline) ready(object string) { t.note(time.Now(), Moment{Kind: Ready, Object: object}) }

// Moments returns what has happened so far, in the order of time.
func (t *Timeline) Moments() []Moment {
	t.mu.Lock()
	defer t.mu.Unlock()
	moments := slices.Clone(t.moments)
	slices.SortStableFunc(moments, func(a, b Moment) int { return cmp.Compare(a.At, b.At) })
	return moments
}

// ReadyAt returns when an object became ready, and whether it has.
func (t *Timeline) ReadyAt(object string) (time.Duration, bool) {
	at, _ := t.readyAt(object)
	return at, at >= 0
}

// readyAt returns -1 if the object is not ready, and a channel that is closed
// when that may have changed.
func (t *Timeline) readyAt(object string) (time.Duration, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.moments {
		if m.Kind == Ready && m.Object == object {
			return m.At, t.changed
		}
	}
	return -1, t.changed
}

// WaitReady waits until an object is ready, or returns an error when ctx is done.
func (t *Timeline) WaitReady(ctx context.Context, object string) error {
	for {
		at, changed := t.readyAt(object)
		if at >= 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("object %s has not become ready: %w", object, context.Cause(ctx))
		}
	}
}

// LongestCall returns the call to the recorder that kept its caller longest.
func (t *Timeline) LongestCall() Moment {
	var longest Moment
	for _, m := range t.Moments() {
		if m.Kind == Recorded && m.Took >= longest.Took {
			longest = m
		}
	}
	return longest
}

// told reports whether the endpoint has taken an event of that reason.
func (t *Timeline) told(object, reason string) bool {
	return slices.ContainsFunc(t.Moments(), func(m Moment) bool {
		return m.Kind == Answered && m.Object == object && m.Reason == reason && m.Status/100 == 2
	})
}

// Recorder returns a recorder that calls r and notes how long that took.
func (t *Timeline) Recorder(r record.EventRecorder) record.EventRecorder {
	return &stopwatch{t, r}
}

type stopwatch struct {
	timeline *Timeline
	next     record.EventRecorder
}

func (s *stopwatch) Event(object runtime.Object, eventtype, reason, message string) {
	defer s.time(object, reason)()
	s.next.Event(object, eventtype, reason, message)
}

func (s *stopwatch) Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	defer s.time(object, reason)()
	s.next.Eventf(object, eventtype, reason, messageFmt, args...)
}

func (s *stopwatch) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	defer s.time(object, reason)()
	s.next.AnnotatedEventf(object, annotations, eventtype, reason, messageFmt, args...)
}

// time starts the watch, and returns what stops it.
func (s *stopwatch) time(object runtime.Object, reason string) func() {
	name := ""
	if named, ok := object.(interface{ GetName() string }); ok {
		name = named.GetName()
	}
	began := time.Now()
	return func() {
		s.timeline.note(began, Moment{Kind: Recorded, Object: name, Reason: reason, Took: time.Since(began)})
	}
}
