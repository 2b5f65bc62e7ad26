package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// electing makes the managers of a namespace elect a leader.
func electing(namespace string) func(*ctrl.Options) {
	return func(o *ctrl.Options) {
		o.LeaderElection = true
		o.LeaderElectionNamespace = namespace
		o.LeaderElectionID = "leader"
		o.LeaderElectionReleaseOnCancel = true
	}
}

func TestALeaderThatIsStoppedUnderLoadDeliversEverythingRecorded(t *testing.T) {
	const objects, each = workers, 100
	endpoint := newEndpoint(t)
	endpoint.Behave(eventstest.Delay(5 * time.Millisecond)) // far slower than recording
	loaded := make(chan struct{}, objects)
	namespace := newNamespace(t)
	r := start(t, setup{
		namespace: namespace,
		endpoint:  endpoint,
		manager:   electing(namespace),
		record: func(ctx context.Context, recorder *events.EventRecorder, object client.Object) {
			for i := range each {
				if i == each/2 {
					loaded <- struct{}{}
					<-ctx.Done() // the manager has begun to stop the reconcilers
				}
				if i >= each/2 && i%10 == 0 {
					// Finishing takes time: a drain that did not wait for the
					// reconcilers would be over meanwhile.
					_, err := admin.CoreV1().ConfigMaps(namespace).Get(context.WithoutCancel(ctx), object.GetName(), metav1.GetOptions{})
					if err != nil {
						t.Error(err)
					}
				}
				recorder.Eventf(object, corev1.EventTypeNormal, "Testing", "event %d", i)
			}
		},
	})
	for i := range objects {
		newConfigMap(t, namespace, fmt.Sprint("object-", i))
	}
	for range objects {
		select {
		case <-loaded:
		case <-r.ctx.Done():
			t.Fatal("the reconcilers have not begun")
		}
	}
	if err := r.stop(); err != nil {
		t.Error("manager:", err)
	}

	next := map[string]int{}
	for _, e := range endpoint.Events() {
		name := e.InvolvedObject.Name
		if want := fmt.Sprint("event ", next[name]); e.Message != want {
			t.Errorf("notification about %s: %q, want %q", name, e.Message, want)
		}
		next[name]++
	}
	if got := len(endpoint.Events()); got != objects*each {
		t.Errorf("%d of %d events were delivered when the manager had stopped", got, objects*each)
	}
}

func TestAFollowerThatNeverLedStopsAtOnce(t *testing.T) {
	namespace := newNamespace(t)
	unused := func(context.Context, *events.EventRecorder, client.Object) {}
	leader := start(t, setup{namespace: namespace, manager: electing(namespace), record: unused})
	select {
	case <-leader.manager.Elected():
	case <-leader.ctx.Done():
		t.Fatal("no manager was elected")
	}

	follower := start(t, setup{
		namespace: namespace,
		record:    unused,
		manager:   electing(namespace),
		recorder:  []events.Option{events.WithDrainTimeout(limit)},
	})
	follower.spy.wait(follower.ctx, t, 1, func(a answer) bool {
		return a.method == http.MethodGet && strings.HasSuffix(a.path, "/leases/leader") && a.status == http.StatusOK
	})
	// A follower has no reconcilers, but its webhooks may record.
	follower.recorder.Event(newConfigMap(t, namespace, "seen-by-a-webhook"), corev1.EventTypeNormal, "Testing", "recorded by a follower")

	began := time.Now()
	if err := follower.stop(); err != nil {
		t.Error("manager:", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the follower took %v to stop", took)
	}
	select {
	case <-follower.manager.Elected():
		t.Error("the follower was elected")
	default:
	}
	if sent := follower.endpoint.Events(); len(sent) != 1 || sent[0].Message != "recorded by a follower" {
		t.Errorf("notifications when the follower had stopped: %+v", sent)
	}
}
