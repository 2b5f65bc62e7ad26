package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/eventrecorder/events"
)

func TestTheCoreV1EventIsStoredAsItWasRecorded(t *testing.T) {
	r := start(t, setup{
		record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
			recorder.AnnotatedEventf(object, map[string]string{"example.com/revision": "main@sha1:abc"},
				corev1.EventTypeWarning, "BuildFailed", "step %d of %s: 100%% of “größer” failed", 3, object.GetName())
		},
	})
	object := newConfigMap(t, r.namespace, "recorded")
	r.written(coreV1, r.namespace, 1)

	const message = "step 3 of recorded: 100% of “größer” failed"
	metadata := map[string]string{"example.com/revision": "main@sha1:abc"}
	stored := storedEvent(t, r.namespace, "recorded")
	if stored.Message != message || stored.Type != corev1.EventTypeWarning || stored.Reason != "BuildFailed" {
		t.Errorf("stored event: type %s, reason %s, message %q", stored.Type, stored.Reason, stored.Message)
	}
	if !maps.Equal(stored.Annotations, metadata) {
		t.Errorf("annotations of the stored event: %v, want %v", stored.Annotations, metadata)
	}
	if ref := stored.InvolvedObject; ref.UID != object.UID || ref.Kind != "ConfigMap" || ref.Namespace != r.namespace {
		t.Errorf("the stored event is about %v", ref)
	}
	if stored.Source.Component != controllerName {
		t.Errorf("the stored event is from %q", stored.Source.Component)
	}

	sent := r.notified(1)[0]
	if sent.Message != message || sent.Severity != "error" || sent.Reason != "BuildFailed" || !maps.Equal(sent.Metadata, metadata) ||
		sent.InvolvedObject.UID != object.UID || sent.ReportingController != controllerName {
		t.Errorf("notification: %+v", sent)
	}
}

func TestALongMessageIsWholeInCoreV1(t *testing.T) {
	message := strings.Repeat("0123456789", 500) // 5,000 bytes
	r := start(t, setup{
		record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
			recorder.Event(object, corev1.EventTypeNormal, "Testing", message)
		},
	})
	newConfigMap(t, r.namespace, "long")
	r.written(coreV1, r.namespace, 1)
	if got := storedEvent(t, r.namespace, "long").Message; got != message {
		t.Errorf("message of the stored event: %d bytes, want %d: %s", len(got), len(message), abridged(got))
	}
	if got := r.notified(1)[0].Message; got != message {
		t.Errorf("message of the notification: %d bytes, want %d: %s", len(got), len(message), abridged(got))
	}
}

func TestAnEventAboutANodeIsStoredInNamespaceDefault(t *testing.T) {
	for _, api := range bothAPIs {
		t.Run(api.name, func(t *testing.T) {
			node, err := admin.CoreV1().Nodes().Create(t.Context(),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, setup{
				api:    api,
				object: &corev1.Node{},
				record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
					if object.GetName() == node.Name {
						recorder.Event(object, corev1.EventTypeNormal, "Testing", "about a node")
					}
				},
			})
			r.written(api, metav1.NamespaceDefault, 1)
			if ref := storedEvent(t, metav1.NamespaceDefault, node.Name).InvolvedObject; ref.UID != node.UID || ref.Namespace != "" {
				t.Errorf("the stored event is about %v", ref)
			}
			if ref := r.notified(1)[0].InvolvedObject; ref.UID != node.UID || ref.Namespace != "" || ref.Kind != "Node" {
				t.Errorf("the notification is about %v", ref)
			}
		})
	}
}

func TestTheEndpointGetsWhatClientGoKeepsFromTheAPIServer(t *testing.T) {
	// client-go writes that many events of a type about an object, and then one
	// every five minutes.
	const all, let = 100, 25
	r := start(t, setup{
		record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
			for i := range all {
				recorder.Eventf(object, corev1.EventTypeNormal, fmt.Sprint("Reason", i), "event %d", i)
			}
			// Events are written one after the other: once this one is there,
			// all that were to come have come.
			last := &corev1.ObjectReference{Kind: "ConfigMap", Namespace: metav1.NamespaceDefault, Name: object.GetNamespace()}
			recorder.Event(last, corev1.EventTypeNormal, "Testing", "event 100")
		},
	})
	newConfigMap(t, r.namespace, "noisy")
	r.written(coreV1, metav1.NamespaceDefault, 1)
	if got := len(storedEvents(t, r.namespace, "noisy")); got != let {
		t.Errorf("%d of %d events are stored, want %d: what this test is about has changed", got, all, let)
	}

	next := 0
	for _, e := range r.notified(all + 1) {
		if e.InvolvedObject.Name != "noisy" {
			continue
		}
		if want := fmt.Sprint("event ", next); e.Message != want {
			t.Errorf("notification %q, want %q", e.Message, want)
		}
		next++
	}
	if next != all {
		t.Errorf("%d of %d notifications arrived", next, all)
	}
}
