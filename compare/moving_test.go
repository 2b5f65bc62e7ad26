package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	peer "github.com/fluxcd/pkg/runtime/events"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// A controller that has the recorder of the peer from v0.113 on moves in two lines:
// those of setUpOurs in which setUpPeer is different. The view with the methods of
// events.k8s.io is what the peer's interface asks for.
var _ peer.Recorder = (*events.EventsV1Recorder)(nil)

// moved is a reconciler that has the recorder embedded, as the peer's documentation
// shows it.
type moved struct {
	client.Client
	peer.Recorder
}

func setUpPeer(mgr ctrl.Manager, url string) (*moved, error) {
	recorder, err := peer.NewRecorder(silent(), url, controllerName, peer.WithManager(mgr))
	if err != nil {
		return nil, err
	}
	return &moved{Client: mgr.GetClient(), Recorder: recorder}, nil
}

func setUpOurs(mgr ctrl.Manager, url string) (*moved, error) {
	recorder, err := events.NewRecorder(mgr, silent(), url, controllerName, events.WithMetricsRegisterer(prometheus.NewRegistry()))
	if err != nil {
		return nil, err
	}
	return &moved{Client: mgr.GetClient(), Recorder: recorder.EventsV1()}, nil
}

func (m *moved) reconcile(object, related *corev1.Pod) {
	m.Eventf(object, nil, corev1.EventTypeNormal, "Progressing", "Reconcile", "%d%% done", 50)
	m.Eventf(object, related, corev1.EventTypeWarning, "HealthCheckFailed", "Check", "timeout waiting for %q", "podinfo")
	m.AnnotatedEventf(object, related, map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:3b2a1c"},
		corev1.EventTypeNormal, "ReconciliationSucceeded", "Apply", "Größe <b> & \"quotes\": finished in %s", "2s")
	m.AnnotatedEventf(object, nil, nil, "Trace", "Traced", "Apply", "only Kubernetes shall see this")
}

func TestTheMoveFromTheConstructorWithOptionsPostsTheSameBytes(t *testing.T) {
	posted := func(setUp func(ctrl.Manager, string) (*moved, error)) []string {
		ep := eventstest.NewEndpoint()
		defer ep.Close()
		mgr, err := newManager()
		if err != nil {
			t.Fatal(err)
		}
		reconciler, err := setUp(mgr, ep.URL())
		if err != nil {
			t.Fatal(err)
		}
		meta := metav1.ObjectMeta{Namespace: "apps", Name: "podinfo", UID: "u-1", ResourceVersion: "7",
			Annotations: map[string]string{"event.toolkit.fluxcd.io/cluster": "staging", "other": "no"}}
		other := *meta.DeepCopy()
		other.Name = "backend"
		reconciler.reconcile(&corev1.Pod{ObjectMeta: meta}, &corev1.Pod{ObjectMeta: other})
		requests, err := ep.WaitRequests(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		var bodies []string
		for _, r := range requests {
			if r.Status != http.StatusAccepted {
				t.Errorf("status %d for %s", r.Status, r.Body)
			}
			bodies = append(bodies, withoutTime(t, r.Body))
		}
		return bodies
	}
	got, want := posted(setUpOurs), posted(setUpPeer)
	if !slices.Equal(got, want) {
		t.Errorf("the bodies are\n%s\nand the peer's\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
