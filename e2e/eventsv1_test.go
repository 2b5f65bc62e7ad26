package e2e

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1api "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/eventrecorder/events"
)

// storedNote returns the one event about the object of that name, as
// events.k8s.io has it.
func storedNote(t *testing.T, namespace, name string) eventsv1api.Event {
	t.Helper()
	stored, err := admin.EventsV1().Events(namespace).Get(t.Context(), storedEvent(t, namespace, name).Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *stored
}

func TestTheEventsV1EventIsStoredAsItWasRecorded(t *testing.T) {
	metadata := map[string]string{"example.com/revision": "main@sha1:abc"}
	r := start(t, setup{
		api: eventsV1,
		record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
			source := &corev1.ObjectReference{Kind: "Secret", APIVersion: "v1", Namespace: object.GetNamespace(), Name: "source"}
			recorder.EventsV1().AnnotatedEventf(object, source, metadata,
				corev1.EventTypeWarning, "BuildFailed", "Build", "step %d of %s: 100%% of “größer” failed", 3, object.GetName())
		},
	})
	object := newConfigMap(t, r.namespace, "recorded")
	r.written(eventsV1, r.namespace, 1)

	const message = "step 3 of recorded: 100% of “größer” failed"
	stored := storedNote(t, r.namespace, "recorded")
	if stored.Note != message || stored.Type != corev1.EventTypeWarning || stored.Reason != "BuildFailed" || stored.Action != "Build" {
		t.Errorf("stored event: type %s, reason %s, action %s, note %q", stored.Type, stored.Reason, stored.Action, stored.Note)
	}
	if !maps.Equal(stored.Annotations, metadata) {
		t.Errorf("annotations of the stored event: %v, want %v", stored.Annotations, metadata)
	}
	if stored.Regarding.UID != object.UID || stored.Related == nil || stored.Related.Name != "source" {
		t.Errorf("the stored event is about %v and %v", stored.Regarding, stored.Related)
	}
	if stored.ReportingController != controllerName {
		t.Errorf("the stored event is from %q", stored.ReportingController)
	}

	sent := r.notified(1)[0]
	if sent.Message != message || sent.Severity != "error" || sent.Reason != "BuildFailed" || sent.Action != "Build" ||
		!maps.Equal(sent.Metadata, metadata) || sent.InvolvedObject.UID != object.UID ||
		sent.RelatedObject == nil || sent.RelatedObject.Name != "source" {
		t.Errorf("notification: %+v", sent)
	}
}

func TestWhatEventsV1WouldRefuseIsMendedAndStored(t *testing.T) {
	type said struct{ eventtype, reason, action, note string }
	digits := strings.Repeat("0123456789", 500)
	letters := strings.Repeat("r", 200)
	cases := map[string]struct {
		recorded, stored said
		sent             string // default: the note as it was recorded
	}{
		"note-of-1024-bytes": {
			recorded: said{"Normal", "Testing", "Test", digits[:1024]},
			stored:   said{"Normal", "Testing", "Test", digits[:1024]},
		},
		"note-of-1025-bytes": {
			recorded: said{"Normal", "Testing", "Test", digits[:1025]},
			stored:   said{"Normal", "Testing", "Test", digits[:1021] + "…"},
		},
		"note-of-5000-bytes": {
			recorded: said{"Normal", "Testing", "Test", digits},
			stored:   said{"Normal", "Testing", "Test", digits[:1021] + "…"},
		},
		"note-of-1000-two-byte-characters": {
			recorded: said{"Normal", "Testing", "Test", strings.Repeat("é", 1000)},
			stored:   said{"Normal", "Testing", "Test", strings.Repeat("é", 510) + "…"},
		},
		"note-of-400-four-byte-characters": {
			recorded: said{"Normal", "Testing", "Test", strings.Repeat("🚀", 400)},
			stored:   said{"Normal", "Testing", "Test", strings.Repeat("🚀", 255) + "…"},
		},
		"note-with-percent-signs": {
			recorded: said{"Normal", "Testing", "Test", "100% of %s, %d"},
			stored:   said{"Normal", "Testing", "Test", "100% of %s, %d"},
		},
		"no-action": {
			recorded: said{"Normal", "Testing", "", "note"},
			stored:   said{"Normal", "Testing", "Testing", "note"},
		},
		"no-reason": {
			recorded: said{"Normal", "", "Test", "note"},
			stored:   said{"Normal", "Test", "Test", "note"},
		},
		"nothing": {
			recorded: said{"", "", "", ""},
			stored:   said{"Normal", "Unknown", "Unknown", ""},
		},
		"long-reason-and-action": {
			recorded: said{"Normal", letters, letters, "note"},
			stored:   said{"Normal", letters[:125] + "…", letters[:125] + "…", "note"},
		},
		"other-type": {
			recorded: said{"Error", "Testing", "Test", "note"},
			stored:   said{"Normal", "Testing", "Test", "note"},
		},
		"invalid-utf-8": {
			recorded: said{"Normal", "Test\xffing", "Te\xffst", "be\xfffore and after"},
			stored:   said{"Normal", "Test\uFFFDing", "Te\uFFFDst", "be\uFFFDfore and after"},
			sent:     "be\uFFFDfore and after",
		},
		"long-invalid-utf-8": { // each of these bytes grows to three
			recorded: said{"Normal", "Testing", "Test", strings.Repeat("a\xff", 500)},
			stored:   said{"Normal", "Testing", "Test", strings.Repeat("a\uFFFD", 255) + "a…"},
			sent:     strings.Repeat("a\uFFFD", 500),
		},
	}

	r := start(t, setup{
		api: eventsV1,
		record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
			e := cases[object.GetName()].recorded
			recorder.EventsV1().Eventf(object, nil, e.eventtype, e.reason, e.action, "%s", e.note)
		},
	})
	for name := range cases {
		newConfigMap(t, r.namespace, name)
	}
	for _, a := range r.spy.wait(r.ctx, t, len(cases), eventsV1.writes(r.namespace, http.MethodPost)) {
		if a.status != http.StatusCreated {
			t.Error("the API server has refused an event:", a)
		}
	}
	sent := map[string]string{}
	for _, e := range r.notified(len(cases)) {
		sent[e.InvolvedObject.Name] = e.Message
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := storedNote(t, r.namespace, name)
			if got := (said{e.Type, e.Reason, e.Action, e.Note}); got != c.stored {
				t.Errorf("stored: %q\nwant:   %q", got, c.stored)
			}
			want := c.sent
			if want == "" {
				want = c.recorded.note
			}
			if sent[name] != want {
				t.Errorf("message of the notification: %q, want %q", abridged(sent[name]), abridged(want))
			}
		})
	}
}

func TestARecorderOfCoreV1CallsWritesThemToEventsV1(t *testing.T) {
	r := start(t, setup{
		api: eventsV1,
		record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
			recorder.Event(object, "Trace", "Testing", "100% for Kubernetes alone")
			recorder.Eventf(object, "Warning", "Tested", "for %s", "both")
		},
	})
	newConfigMap(t, r.namespace, "recorded")
	r.written(eventsV1, r.namespace, 2)
	got := map[string]string{}
	for _, e := range storedEvents(t, r.namespace, "recorded") {
		got[e.Action] = e.Type + ": " + e.Message
	}
	want := map[string]string{"Testing": "Normal: 100% for Kubernetes alone", "Tested": "Warning: for both"}
	if !maps.Equal(got, want) {
		t.Errorf("stored: %v, want %v", got, want)
	}
	if sent := r.notified(1)[0]; sent.Message != "for both" || sent.Action != "" {
		t.Errorf("notification: %+v", sent)
	}
}

func TestASeriesInEventsV1DoesNotLoseTheNotificationOfTheSecondNote(t *testing.T) {
	stored := make(chan struct{})
	r := start(t, setup{
		api: eventsV1,
		record: func(ctx context.Context, recorder *events.EventRecorder, object client.Object) {
			recorder.EventsV1().Eventf(object, nil, "Normal", "Progressing", "Reconcile", "1 of 2 replicas are ready")
			select {
			case <-stored:
			case <-ctx.Done():
			}
			recorder.EventsV1().Eventf(object, nil, "Normal", "Progressing", "Reconcile", "2 of 2 replicas are ready")
		},
	})
	newConfigMap(t, r.namespace, "progressing")
	r.written(eventsV1, r.namespace, 1)
	close(stored)
	r.spy.wait(r.ctx, t, 1, eventsV1.writes(r.namespace, http.MethodPatch, http.StatusOK))

	event := storedNote(t, r.namespace, "progressing")
	if event.Series == nil || event.Series.Count != 2 || event.Note != "1 of 2 replicas are ready" {
		t.Errorf("stored: note %q, series %v; what this test is about has changed", event.Note, event.Series)
	}
	sent := r.notified(2)
	if sent[0].Message != "1 of 2 replicas are ready" || sent[1].Message != "2 of 2 replicas are ready" {
		t.Errorf("notifications: %q, %q", sent[0].Message, sent[1].Message)
	}
}
