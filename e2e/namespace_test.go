package e2e

import (
	"context"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/eventrecorder/events"
)

func TestInANamespaceBeingDeletedTheEventIsRefusedAndTheNotificationStillGoesOut(t *testing.T) {
	for _, api := range bothAPIs {
		t.Run(api.name, func(t *testing.T) {
			namespace := newNamespace(t)
			object := newConfigMap(t, namespace, "doomed")
			// It stays like this: there is no namespace controller to finish it.
			if err := admin.CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			_, err := admin.CoreV1().Events(namespace).Create(t.Context(), &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Name: "probe", Namespace: namespace},
				InvolvedObject: corev1.ObjectReference{Kind: "ConfigMap", Namespace: namespace, Name: "doomed"},
			}, metav1.CreateOptions{})
			if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				t.Fatalf("creating an event: %v, want a refusal because the namespace is being deleted", err)
			}

			r := start(t, setup{
				api:       api,
				namespace: namespace,
				record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
					recorder.Event(object, corev1.EventTypeNormal, "Finalizing", "cleaning up")
				},
			})
			r.spy.wait(r.ctx, t, 1, api.writes(namespace, http.MethodPost, http.StatusForbidden))
			if stored := storedEvents(t, namespace, "doomed"); len(stored) != 0 {
				t.Errorf("stored: %v", stored)
			}
			if sent := r.notified(1)[0]; sent.InvolvedObject.UID != object.UID || sent.Message != "cleaning up" {
				t.Errorf("notification: %+v", sent)
			}
		})
	}
}
