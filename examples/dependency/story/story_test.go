package story_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
	"github.com/eventrecorder/events/examples/dependency/story"
)

// play tells the story in virtual time, in which a minute may be one.
func play(t *testing.T, check func(story.Plan, *story.Timeline, *eventstest.Transport), maker func(story.Plan) story.Maker) {
	synctest.Test(t, func(t *testing.T) {
		plan, err := story.NewPlan(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		ep := eventstest.NewTransport(eventstest.WithWindow(plan.RetryAfter))
		defer ep.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		timeline, err := story.Play(ctx, plan, ep, maker(plan))
		if err != nil {
			t.Fatal(err)
		}
		if a, _ := timeline.ReadyAt(story.NameA); a != plan.AReady {
			t.Errorf("A became ready after %v, want %v", a, plan.AReady)
		}
		check(plan, timeline, ep)
	})
}

func TestInTheBackgroundBIsReadyWithinOneRetryIntervalOfA(t *testing.T) {
	check := func(plan story.Plan, timeline *story.Timeline, ep *eventstest.Transport) {
		if err := plan.Kept(timeline); err != nil {
			t.Error(err)
		}
		if b, _ := timeline.ReadyAt(story.NameB); b > plan.AReady+plan.RetryInterval {
			t.Errorf("B became ready after %v, want at most %v", b, plan.AReady+plan.RetryInterval)
		}
		if took := timeline.LongestCall().Took; took != 0 {
			t.Errorf("a call took %v, want no time at all", took)
		}
		// B's first, A's only, and B's last.
		if taken := ep.Events(); len(taken) != 3 {
			t.Errorf("the endpoint has taken %d events, want 3", len(taken))
		}
		wantOutage(t, timeline)
	}
	play(t, check, func(plan story.Plan) story.Maker {
		return func(url string, client *http.Client) (record.EventRecorder, error) {
			return events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), url, "story",
				events.WithHTTPClient(client),
				events.WithRetryWait(plan.WaitMin, plan.WaitMax),
				events.WithMetricsRegisterer(prometheus.NewRegistry()))
		}
	})
}

func TestOnTheCallersGoroutineBStandsStillForTheRetryAfter(t *testing.T) {
	check := func(plan story.Plan, timeline *story.Timeline, _ *eventstest.Transport) {
		if plan.Kept(timeline) == nil {
			t.Error("the promise was kept")
		}
		longest := timeline.LongestCall()
		if longest.Object != story.NameB || longest.Took < plan.RetryAfter || longest.Took > plan.RetryAfter+plan.WaitMax {
			t.Errorf("the longest call was %+v, want one about B of %v", longest, plan.RetryAfter)
		}
		if b, _ := timeline.ReadyAt(story.NameB); b < longest.At+longest.Took {
			t.Errorf("B became ready after %v, while its worker stood still from %v for %v", b, longest.At, longest.Took)
		}
		wantOutage(t, timeline)
	}
	play(t, check, func(plan story.Plan) story.Maker {
		return func(url string, client *http.Client) (record.EventRecorder, error) {
			return story.NewSyncRecorder(context.Background(), url, client, plan), nil
		}
	})
}

// wantOutage checks that the telling met the trouble: two answers, a refused
// connection, and a duplicate on the retry.
func wantOutage(t *testing.T, timeline *story.Timeline) {
	t.Helper()
	var statuses []int
	for _, m := range timeline.Moments() {
		if m.Kind == story.Answered && m.Object == story.NameB && len(statuses) < 4 {
			statuses = append(statuses, m.Status)
		}
	}
	want := [4]int{202, 429, 0, 429}
	if len(statuses) < len(want) || [4]int(statuses) != want {
		t.Errorf("the attempts to post events about B were answered %v, want %v first", statuses, want)
	}
}

func TestFiveMinutesMustBeWholeSeconds(t *testing.T) {
	for _, minute := range []time.Duration{0, -time.Second, time.Millisecond, 300 * time.Millisecond} {
		if _, err := story.NewPlan(minute); err == nil {
			t.Errorf("a minute of %v is no error", minute)
		}
	}
	plan, err := story.NewPlan(400 * time.Millisecond)
	if err != nil || plan.RetryAfter != 2*time.Second || plan.Told(plan.RetryAfter) != 5*time.Minute {
		t.Errorf("got %+v and %v", plan, err)
	}
}
