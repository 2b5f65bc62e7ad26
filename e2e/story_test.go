package e2e

import (
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
	"github.com/eventrecorder/events/examples/dependency/story"
)

// storyMinute is how long a minute of the story takes: long enough for a busy
// API server to make no difference. B is ready after two and a half of them or,
// where it stands still, after six and a half.
const storyMinute = 2 * time.Second

// tell tells the story of examples/dependency with the objects on the API
// server, until B is ready and the manager has stopped.
func tell(t *testing.T, makeRecorder func(*running, story.Plan, *http.Client) record.EventRecorder) (*running, story.Plan, *story.Timeline) {
	t.Helper()
	plan, err := story.NewPlan(storyMinute)
	if err != nil {
		t.Fatal(err)
	}
	endpoint := newEndpoint(t, eventstest.WithWindow(plan.RetryAfter))
	timeline := story.NewTimeline()
	client := story.Trouble(endpoint, plan, timeline)
	r := start(t, setup{
		endpoint: endpoint,
		recorder: []events.Option{events.WithHTTPClient(client), events.WithRetryWait(plan.WaitMin, plan.WaitMax)},
		controller: func(r *running) error {
			return (&story.Reconciler{
				Client:   r.manager.GetClient(),
				Recorder: timeline.Recorder(makeRecorder(r, plan, client)),
				Plan:     plan,
				Timeline: timeline,
			}).SetupWithManager(r.manager)
		},
	})
	if !r.manager.GetCache().WaitForCacheSync(r.ctx) {
		t.Fatal("the cache has not synced")
	}

	timeline.Begin()
	for _, object := range []*corev1.ConfigMap{story.A(r.namespace, time.Now().Add(plan.AReady)), story.B(r.namespace)} {
		if _, err := admin.CoreV1().ConfigMaps(r.namespace).Create(r.ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := timeline.WaitReady(r.ctx, story.NameB); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal("manager:", err)
	}
	// Both recorders have met the same trouble: taken, a duplicate, an endpoint
	// that is unreachable, and a duplicate on the retry.
	var statuses []int
	for _, m := range timeline.Moments() {
		if m.Kind == story.Answered && m.Object == story.NameB {
			statuses = append(statuses, m.Status)
		}
	}
	trouble := []int{http.StatusAccepted, http.StatusTooManyRequests, 0, http.StatusTooManyRequests}
	if len(statuses) < len(trouble) || !slices.Equal(statuses[:len(trouble)], trouble) {
		t.Errorf("posts about B were answered %v, want %v to begin with", statuses, trouble)
	}
	return r, plan, timeline
}

func TestInTheBackgroundBIsReadyWithinOneRetryIntervalOfA(t *testing.T) {
	t.Parallel()
	r, plan, timeline := tell(t, func(r *running, _ story.Plan, _ *http.Client) record.EventRecorder {
		return r.recorder
	})
	if err := plan.Kept(timeline); err != nil {
		t.Error(err)
	}
	b, err := admin.CoreV1().ConfigMaps(r.namespace).Get(r.ctx, story.NameB, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if b.Annotations[story.AnnotationReady] != "true" {
		t.Errorf("on the API server B is %v", b.ObjectMeta)
	}
}

func TestOnTheCallersGoroutineBStandsStillUntilTheWaitIsOver(t *testing.T) {
	t.Parallel()
	_, plan, timeline := tell(t, func(r *running, plan story.Plan, client *http.Client) record.EventRecorder {
		return story.NewSyncRecorder(r.ctx, r.endpoint.URL(), client, plan)
	})
	if plan.Kept(timeline) == nil {
		t.Error("the promise was kept")
	}
	longest := timeline.LongestCall()
	if longest.Object != story.NameB || longest.Took < plan.RetryAfter {
		t.Errorf("the longest call was about %s and took %v, want one about B of %v", longest.Object, longest.Took, plan.RetryAfter)
	}
	if b, _ := timeline.ReadyAt(story.NameB); b < longest.At+longest.Took {
		t.Errorf("B became ready after %v, while its worker stood still from %v for %v", b, longest.At, longest.Took)
	}
}
