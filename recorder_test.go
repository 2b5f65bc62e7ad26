package events_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// only delivers what was recorded and returns the one body that arrived.
func only(t *testing.T, h *harness, tr *eventstest.Transport) string {
	t.Helper()
	h.settled()
	requests := tr.Requests()
	if len(requests) != 1 {
		t.Fatalf("%d posts, want 1", len(requests))
	}
	return string(requests[0].Body)
}

// The bubble's clock begins at midnight UTC, 2000-01-01.
const bubbleTime = "2000-01-01T00:00:00Z"

func TestPayloadIsThatOfNotificationController(t *testing.T) {
	host, _ := os.Hostname()
	long := strings.Repeat("x", 39_001)
	for _, test := range []struct {
		name   string
		record func(r *events.EventRecorder)
		want   string // with the members that are always the same left out
	}{
		{
			"everything",
			func(r *events.EventRecorder) {
				p := pod("a")
				p.Annotations = map[string]string{"event.toolkit.fluxcd.io/change": "1", "other": "no"}
				r.AnnotatedEventf(p, map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main"}, "Warning", "Failed", "took %ds", 3)
			},
			`{"involvedObject":{"kind":"Pod","namespace":"default","name":"a","uid":"uid-a","apiVersion":"v1","resourceVersion":"1"},"severity":"error","timestamp":"T","message":"took 3s","reason":"Failed","metadata":{"event.toolkit.fluxcd.io/change":"1","kustomize.toolkit.fluxcd.io/revision":"main"},"reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
		{
			"no annotations, type Normal, HTML characters",
			func(r *events.EventRecorder) { r.Event(pod("a"), "Normal", "Fine", "<a> & 100% ü") },
			`{"involvedObject":{"kind":"Pod","namespace":"default","name":"a","uid":"uid-a","apiVersion":"v1","resourceVersion":"1"},"severity":"info","timestamp":"T","message":"\u003ca\u003e \u0026 100% ü","reason":"Fine","reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
		{
			"an unknown type, an empty reason, an empty message",
			func(r *events.EventRecorder) { r.Event(pod("a"), "Strange", "", "") },
			`{"involvedObject":{"kind":"Pod","namespace":"default","name":"a","uid":"uid-a","apiVersion":"v1","resourceVersion":"1"},"severity":"info","timestamp":"T","message":"","reason":"","reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
		{
			"a cluster-scoped object has no namespace",
			func(r *events.EventRecorder) {
				r.Eventf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, "Normal", "R", "%s", "m")
			},
			`{"involvedObject":{"kind":"Node","name":"n1","apiVersion":"v1"},"severity":"info","timestamp":"T","message":"m","reason":"R","reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
		{
			"a name that is not DNS-safe, a reference with a field path",
			func(r *events.EventRecorder) {
				r.Event(&corev1.ObjectReference{Kind: "Group", Name: "system:node", FieldPath: "spec"}, "Normal", "R", "m")
			},
			`{"involvedObject":{"kind":"Group","name":"system:node","fieldPath":"spec"},"severity":"info","timestamp":"T","message":"m","reason":"R","reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
		{
			"a type that the scheme does not know but that says what it is",
			func(r *events.EventRecorder) {
				u := &unstructured.Unstructured{}
				u.SetAPIVersion("example.com/v1")
				u.SetKind("Widget")
				u.SetName("w")
				u.SetNamespace("ns")
				u.SetAnnotations(map[string]string{"event.toolkit.fluxcd.io/k": "v"})
				r.Event(u, "Normal", "R", "m")
			},
			`{"involvedObject":{"kind":"Widget","namespace":"ns","name":"w","apiVersion":"example.com/v1"},"severity":"info","timestamp":"T","message":"m","reason":"R","metadata":{"event.toolkit.fluxcd.io/k":"v"},"reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
		{
			"invalid UTF-8 is replaced, and nothing else",
			func(r *events.EventRecorder) { r.Event(pod("a"), "Normal", "R", "before\xff\xfeafter") },
			`{"involvedObject":{"kind":"Pod","namespace":"default","name":"a","uid":"uid-a","apiVersion":"v1","resourceVersion":"1"},"severity":"info","timestamp":"T","message":"before\ufffd\ufffdafter","reason":"R","reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
		{
			"a message too long",
			func(r *events.EventRecorder) { r.Event(pod("a"), "Normal", "R", long) },
			`{"involvedObject":{"kind":"Pod","namespace":"default","name":"a","uid":"uid-a","apiVersion":"v1","resourceVersion":"1"},"severity":"info","timestamp":"T","message":"` + long[:39_000-13] + `… (truncated)","reason":"R","reportingController":"test-controller","reportingInstance":"HOST"}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				test.record(h.EventRecorder)
				want := strings.NewReplacer(`"timestamp":"T"`, `"timestamp":"`+bubbleTime+`"`, "HOST", host).Replace(test.want)
				if got := only(t, h, tr); got != want {
					t.Errorf("payload\n%s\nwant\n%s", got, want)
				}
				if ct := tr.Requests()[0].Header.Get("Content-Type"); ct != "application/json" {
					t.Errorf("content type %q", ct)
				}
				h.wantOutcomes(map[string]int{"delivered": 1})
			})
		})
	}
}

func TestAMessageIsCutAtThirtyNineThousandCharacters(t *testing.T) {
	for name, message := range map[string]string{
		"8 MiB": strings.Repeat("x", 8<<20), "multi-byte": strings.Repeat("ü", 40_000), "emoji": strings.Repeat("🦊", 39_001),
		"invalid bytes": strings.Repeat("\xff", 50_000),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				h.say("a", message)
				only(t, h, tr)
				got := []rune(tr.Events()[0].Message)
				if len(got) != 39_000 || !strings.HasSuffix(string(got), "… (truncated)") {
					t.Errorf("%d characters, the last %q", len(got), string(got[len(got)-15:]))
				}
				if kube := h.kube.events()[0].Message; kube != message {
					t.Error("the message of the Kubernetes event was changed")
				}
			})
		})
	}
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		message := strings.Repeat("ü", 39_000)
		h.say("a", message)
		only(t, h, tr)
		if tr.Events()[0].Message != message {
			t.Error("a message of exactly the limit was cut")
		}
	})
}

func TestTheKubernetesEventIsRecordedAsItWasGiven(t *testing.T) {
	ref := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "a", UID: "uid-a", ResourceVersion: "1"}
	long, noVerb, none := strings.Repeat("long ", 1000), "100%", []any{}
	for name, test := range map[string]struct {
		record func(r *events.EventRecorder)
		want   kubeEvent
	}{
		"Event never formats": {
			func(r *events.EventRecorder) { r.Event(pod("a"), "Normal", "R", "100% %s %d") },
			kubeEvent{ref, nil, "Normal", "R", "100% %s %d"},
		},
		"Eventf formats as Sprintf does": {
			func(r *events.EventRecorder) { r.Eventf(pod("a"), "Warning", "R", "%d%% %q", 5, "x%y") },
			kubeEvent{ref, nil, "Warning", "R", `5% "x%y"`},
		},
		"Eventf without arguments still formats": {
			func(r *events.EventRecorder) { r.Eventf(pod("a"), "Normal", "R", noVerb, none...) },
			kubeEvent{ref, nil, "Normal", "R", "100%!(NOVERB)"},
		},
		"annotations, a formatted message that has a verb in it": {
			func(r *events.EventRecorder) {
				r.AnnotatedEventf(pod("a"), map[string]string{"k": "v"}, "Normal", "R", "%s", "%s%d")
			},
			kubeEvent{ref, map[string]string{"k": "v"}, "Normal", "R", "%s%d"},
		},
		"a long message": {
			func(r *events.EventRecorder) { r.Event(pod("a"), "Normal", "R", long) },
			kubeEvent{ref, nil, "Normal", "R", long},
		},
		"another type": {
			func(r *events.EventRecorder) { r.Event(pod("a"), "Strange", "R", "m") },
			kubeEvent{ref, nil, "Normal", "R", "m"}, // client-go drops any other without a word
		},
		"the object's own annotations": {
			func(r *events.EventRecorder) {
				p := pod("a")
				p.Annotations = map[string]string{"event.toolkit.fluxcd.io/k": "object", "event.toolkit.fluxcd.io/l": "object", "other": "x"}
				r.AnnotatedEventf(p, map[string]string{"event.toolkit.fluxcd.io/k": "controller"}, "Normal", "R", "m")
			},
			kubeEvent{ref, map[string]string{"event.toolkit.fluxcd.io/k": "controller", "event.toolkit.fluxcd.io/l": "object"}, "Normal", "R", "m"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				test.record(h.EventRecorder)
				h.settled()
				got := h.kube.events()
				if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(test.want) {
					t.Errorf("Kubernetes events %+v, want %+v", got, test.want)
				}
				if m := tr.Events()[0].Message; m != test.want.Message {
					t.Errorf("the endpoint was told %q", m)
				}
			})
		})
	}
}

func TestTraceEventsAreForKubernetesOnly(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.AnnotatedEventf(pod("a"), map[string]string{"k": "v"}, "Trace", "R", "m")
		h.settled()
		if got := h.kube.events(); len(got) != 1 || got[0].Type != "Normal" {
			t.Errorf("Kubernetes events %+v", got)
		}
		if len(tr.Requests()) != 0 {
			t.Error("posted")
		}
		h.wantOutcomes(map[string]int{})
	})
}

func TestMetadataMergesWhatTheControllerAndTheObjectSay(t *testing.T) {
	key := func(k string) string { return "event.toolkit.fluxcd.io/" + k }
	for name, test := range map[string]struct{ given, object, want map[string]string }{
		"none":                         {nil, nil, nil},
		"empty":                        {map[string]string{}, map[string]string{}, nil},
		"only the controller's":        {map[string]string{"a": "1", "b": "2", "c": "3"}, nil, map[string]string{"a": "1", "b": "2", "c": "3"}},
		"only the object's, nil given": {nil, map[string]string{key("a"): "1", "b": "no"}, map[string]string{key("a"): "1"}},
		"both": {
			map[string]string{"g/token": "1", key("a"): "controller"}, map[string]string{key("a"): "object", key("b"): "object"},
			map[string]string{"g/token": "1", key("a"): "controller", key("b"): "object"},
		},
		"a key of the controller that is empty still counts": {
			map[string]string{key("a"): ""}, map[string]string{key("a"): "object"}, map[string]string{key("a"): ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				p := pod("a")
				p.Annotations = maps.Clone(test.object)
				h.AnnotatedEventf(p, test.given, "Normal", "R", "m")
				h.settled()
				if got := tr.Events()[0].Metadata; !maps.Equal(got, test.want) {
					t.Errorf("metadata %v, want %v", got, test.want)
				}
				if !maps.Equal(p.Annotations, test.object) {
					t.Error("the object's annotations were changed")
				}
			})
		})
	}
}

func TestWhatTheCallerChangesAfterTheCallIsNotSeen(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Delay(time.Second)) // the payload is made long after the call
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "keeps the lane busy")
		p := pod("a")
		ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "a", UID: "uid-a"}
		annotations := map[string]string{"k": "v"}
		h.AnnotatedEventf(p, annotations, "Normal", "R", "object")
		h.AnnotatedEventf(ref, annotations, "Normal", "R", "reference")
		p.Name, ref.Name = "changed", "changed"
		annotations["k"], annotations["l"] = "changed", "changed"
		h.settled()
		for _, e := range tr.Events()[1:] {
			if e.InvolvedObject.Name != "a" || !maps.Equal(e.Metadata, map[string]string{"k": "v"}) {
				t.Errorf("%s: involved object %+v, metadata %v", e.Message, e.InvolvedObject, e.Metadata)
			}
		}
		for _, e := range h.kube.events()[1:] {
			if !maps.Equal(e.Annotations, map[string]string{"k": "v"}) {
				t.Errorf("annotations of the Kubernetes event: %v", e.Annotations)
			}
		}
	})
}

// Whatever the wrapped recorder does with what it is given, the payload keeps
// the values of the call.
func TestTheWrappedRecorderCannotChangeThePayload(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		vandal := vandalRecorder{}
		r, err := events.NewRecorderForScheme(scheme.Scheme, vandal, logr.Discard(), tr.URL(), "x", on(tr),
			events.WithMetricsRegisterer(h.registry))
		if err != nil {
			t.Fatal(err)
		}
		r.AnnotatedEventf(pod("a"), map[string]string{"k": "v"}, "Normal", "R", "m")
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if e := tr.Events()[0]; e.InvolvedObject.Name != "a" || e.Metadata["k"] != "v" {
			t.Errorf("payload %+v", e)
		}
	})
}

type vandalRecorder struct{ record.EventRecorder }

func (vandalRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, _, _, _ string, _ ...any) {
	object.(*corev1.ObjectReference).Name = "vandalized"
	annotations["k"] = "vandalized"
}

type incompleteObject struct {
	*metav1.TypeMeta
	*metav1.ObjectMeta
}

func (o *incompleteObject) DeepCopyObject() runtime.Object { return o }

type unregisteredObject struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

func (o *unregisteredObject) DeepCopyObject() runtime.Object { return o }

func TestObjectsThatCannotBeReferencedAreCountedLoggedAndNotPassedOn(t *testing.T) {
	for name, object := range map[string]runtime.Object{
		"nil": nil, "nil pod": (*corev1.Pod)(nil), "nil reference": (*corev1.ObjectReference)(nil),
		"nil unstructured":             (*unstructured.Unstructured)(nil),
		"pod list that is nil":         (*corev1.PodList)(nil),
		"embeds nil":                   &incompleteObject{},
		"a type the scheme knows not":  &unregisteredObject{ObjectMeta: metav1.ObjectMeta{Name: "x"}},
		"unstructured without content": &unstructured.Unstructured{},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				h.AnnotatedEventf(object, map[string]string{"k": "v"}, "Normal", "Why", "m")
				h.settled()
				h.wantOutcomes(map[string]int{"invalid": 1})
				if n := len(h.kube.events()); n != 0 {
					t.Error("the wrapped recorder was called: client-go's would have panicked or complained")
				}
				if lines := h.log.with(msgLost); len(lines) != 1 || lines[0].Err == nil || lines[0].Keys["reason"] != "Why" || lines[0].Keys["type"] == "" {
					t.Errorf("log: %v", h.log.lines)
				}
				h.shutdownNow()
			})
		})
	}
}

// A related object that cannot be read costs the event nothing but the reference.
func TestRelatedObjectsThatCannotBeReferencedAreLeftOut(t *testing.T) {
	for name, related := range map[string]runtime.Object{
		"nil": nil, "nil pod": (*corev1.Pod)(nil), "nil reference": (*corev1.ObjectReference)(nil), "embeds nil": &incompleteObject{},
		"a type the scheme knows not": &unregisteredObject{}, "unstructured without content": &unstructured.Unstructured{},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				h.EventsV1().Eventf(pod("a"), related, "Normal", "R", "A", "m")
				h.settled()
				h.wantOutcomes(map[string]int{"delivered": 1})
				if e := tr.Events()[0]; e.RelatedObject != nil || len(h.kube.events()) != 1 {
					t.Errorf("payload %+v, %d Kubernetes events", e, len(h.kube.events()))
				}
			})
		})
	}
}

// Large, small, formatted or not: what one event says is in no other.
func TestEventsOfAllSizesDoNotMix(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr))
		var want []kubeEvent
		for i := range 300 {
			e := kubeEvent{Type: "Normal", Reason: fmt.Sprint("R", i), Message: strings.Repeat(fmt.Sprint(i, " "), []int{0, 1, 3, 2000, 10_000}[i%5])}
			if n := i % 4; n > 0 {
				e.Annotations = map[string]string{}
				for k := range n {
					e.Annotations[fmt.Sprint("k", k)] = fmt.Sprint("v", i, k)
				}
			}
			want = append(want, e)
			if i%2 == 0 {
				h.AnnotatedEventf(pod("a"), e.Annotations, e.Type, e.Reason, e.Message)
			} else {
				h.AnnotatedEventf(pod("a"), e.Annotations, e.Type, e.Reason, "%s", e.Message)
			}
		}
		_ = tr.Up()
		h.settled()
		for i, e := range tr.Events() {
			if e.Reason != want[i].Reason || !strings.HasPrefix(want[i].Message, strings.TrimSuffix(e.Message, "… (truncated)")) || !maps.Equal(e.Metadata, want[i].Annotations) {
				t.Errorf("event %d: reason %q, message of %d bytes, metadata %v", i, e.Reason, len(e.Message), e.Metadata)
			}
			if k := h.kube.events()[i]; k.Message != want[i].Message || !maps.Equal(k.Annotations, want[i].Annotations) {
				t.Errorf("Kubernetes event %d: message of %d bytes, annotations %v", i, len(k.Message), k.Annotations)
			}
		}
		h.wantOutcomes(map[string]int{"delivered": 300})
	}, eventstest.WithWindow(0))
}

func TestACoreV1RecorderOfOnesOwnIsUsed(t *testing.T) {
	own := &kubeRecorder{}
	h := newHarness(t, "", events.WithCoreV1Recorder(own))
	h.say("a", "m")
	if len(own.events()) != 1 || len(h.kube.events()) != 0 {
		t.Errorf("%d events of one's own recorder, %d of the other", len(own.events()), len(h.kube.events()))
	}
	if err := construct("", "x", events.WithCoreV1Recorder(own), events.WithEventsV1Recorder(&v1Recorder{})); err == nil {
		t.Error("both kinds of recorders were taken")
	}
}

func TestAnObjectWithoutKindOrNameIsForKubernetesOnly(t *testing.T) {
	for name, object := range map[string]runtime.Object{
		"no name": &corev1.Pod{}, "empty reference": &corev1.ObjectReference{}, "no kind": &corev1.ObjectReference{Name: "x"},
		"a list": &corev1.PodList{},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				h.Event(object, "Normal", "R", "m")
				h.settled()
				h.wantOutcomes(map[string]int{"invalid": 1})
				if len(h.kube.events()) != 1 || len(tr.Requests()) != 0 || len(h.log.with(msgLost)) != 1 {
					t.Errorf("%d Kubernetes events, %d posts, log %v", len(h.kube.events()), len(tr.Requests()), h.log.lines)
				}
				h.shutdownNow()
			})
		})
	}
}

func TestAnUnregisteredTypeThatSaysWhatItIsIsDelivered(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.Event(&unregisteredObject{metav1.TypeMeta{APIVersion: "x.y/v1", Kind: "Thing"}, metav1.ObjectMeta{Name: "x"}}, "Normal", "R", "m")
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 1})
	})
}

func TestNilAndZeroRecordersDoNothing(t *testing.T) {
	for name, r := range map[string]*events.EventRecorder{"nil": nil, "zero": {}} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			r.Event(pod("a"), "Normal", "R", "m")
			r.Eventf(nil, "Normal", "R", "%s", "m")
			r.AnnotatedEventf(pod("a"), nil, "Normal", "R", "m")
			r.WithLogger(klog.Background()).Event(pod("a"), "Normal", "R", "m")
			if err := r.Flush(ctx); err != nil {
				t.Error(err)
			}
			if err := r.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			v := r.EventsV1()
			v.Eventf(pod("a"), nil, "Normal", "R", "A", "m")
			v.AnnotatedEventf(pod("a"), pod("b"), nil, "Normal", "R", "A", "m")
			v.WithLogger(klog.Background()).Eventf(pod("a"), nil, "Normal", "R", "A", "m")
		})
	}
	var v *events.EventsV1Recorder
	v.Eventf(pod("a"), nil, "Normal", "R", "A", "m")
	v.WithLogger(klog.Background()).Eventf(pod("a"), nil, "Normal", "R", "A", "m")
	(&events.EventsV1Recorder{}).Eventf(pod("a"), nil, "Normal", "R", "A", "m")
}

func TestLoggersAndRecordersThatAreNothingWork(t *testing.T) {
	for name, log := range map[string]logr.Logger{"zero": {}, "discard": logr.Discard()} {
		for wrappedName, wrapped := range map[string]record.EventRecorder{
			"nil": nil, "typed nil": (*record.FakeRecorder)(nil), "fake without a channel": &record.FakeRecorder{},
		} {
			t.Run(name+" logger, "+wrappedName, func(t *testing.T) {
				bubble(t, func(t *testing.T, tr *eventstest.Transport) {
					tr.BehaveNext(eventstest.Status(400))
					r, err := events.NewRecorderForScheme(scheme.Scheme, wrapped, log, tr.URL(), "x", on(tr),
						events.WithMetricsRegisterer(prometheus.NewRegistry()))
					if err != nil {
						t.Fatal(err)
					}
					r.Event(pod("a"), "Normal", "R", "rejected")
					r.Event(nil, "Normal", "R", "invalid")
					r.WithLogger(klog.Logger{}).Event(pod("a"), "Normal", "R", "delivered")
					r.EventsV1().Eventf(pod("a"), nil, "Normal", "R", "A", "delivered too")
					if err := r.Shutdown(t.Context()); err != nil {
						t.Fatal(err)
					}
					if n := len(tr.Events()); n != 2 {
						t.Errorf("%d events arrived", n)
					}
				})
			})
		}
	}
}

func TestANilSchemeIsEnoughForObjectsThatSayWhatTheyAre(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		r, err := events.NewRecorderForScheme(nil, h.kube, logr.Discard(), tr.URL(), controllerName, on(tr), events.WithMetricsRegisterer(h.registry))
		if err != nil {
			t.Fatal(err)
		}
		r.Event(pod("a"), "Normal", "R", "no kind")
		p := pod("b")
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		r.Event(p, "Normal", "R", "m")
		_ = r.Flush(t.Context())
		h.wantOutcomes(map[string]int{"invalid": 1, "delivered": 1})
	})
}

func TestWithoutAnEndpointThereAreOnlyKubernetesEvents(t *testing.T) {
	h := newHarness(t, "", events.WithHTTPClient(&http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		t.Error("an HTTP request without an endpoint")
		return nil, http.ErrHandlerTimeout
	})}))
	h.say("a", "m")
	h.Event(nil, "Normal", "R", "invalid")
	if err := h.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	h.say("a", "after")
	if n := len(h.kube.events()); n != 2 {
		t.Errorf("%d Kubernetes events, want 2", n)
	}
	if families, err := h.registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("metrics %v, %v: nothing is meant for an endpoint", families, err)
	}
	if len(h.log.with(msgLost)) != 1 {
		t.Errorf("log: %v", h.log.lines)
	}
}

func TestManyDifferentEventsAboutOneObjectAllArrive(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		// Around client-go's own recorder, whose spam filter lets 25 pass.
		broadcaster := record.NewBroadcaster()
		h := newHarness(t, tr.URL(), on(tr))
		r, err := events.NewRecorderForScheme(scheme.Scheme, broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{}), logr.Discard(),
			tr.URL(), controllerName, on(tr), events.WithMetricsRegisterer(h.registry))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprint("event ", i))
			r.Event(pod("a"), "Normal", "Testing", want[i])
		}
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := messages(tr.Events()); !slices.Equal(got, want) {
			t.Errorf("arrived: %v", got)
		}
		broadcaster.Shutdown()
		synctest.Wait()
	})
}

func TestAKubernetesEventThatIsRefusedIsStillPosted(t *testing.T) {
	// Neither recorder learns that the API server refuses an event, and the
	// post does not depend on it. e2e shows the same with a real API server.
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		r, err := events.NewRecorderForScheme(scheme.Scheme, deafRecorder{}, logr.Discard(), tr.URL(), controllerName, on(tr), events.WithMetricsRegisterer(h.registry))
		if err != nil {
			t.Fatal(err)
		}
		r.Event(pod("a"), "Normal", "R", "m")
		_ = r.Flush(t.Context())
		h.wantOutcomes(map[string]int{"delivered": 1})
	})
}

type deafRecorder struct{}

func (deafRecorder) Event(runtime.Object, string, string, string)          {}
func (deafRecorder) Eventf(runtime.Object, string, string, string, ...any) {}
func (deafRecorder) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...any) {
}

func TestEventsThatDifferInATokenAreBothPosted(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Delay(time.Second))
		h := newHarness(t, tr.URL(), on(tr))
		for i := range 5 { // the first is being posted while the others wait
			u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease",
				"metadata": map[string]any{"name": "r", "namespace": "ns"}}}
			h.AnnotatedEventf(u, map[string]string{"helm.toolkit.fluxcd.io/token": fmt.Sprint("sha256:", i)}, "Normal", "UpgradeSucceeded", "the same")
		}
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 5})
		for i, e := range tr.Events() {
			if e.Metadata["helm.toolkit.fluxcd.io/token"] != fmt.Sprint("sha256:", i) {
				t.Errorf("metadata %v", e.Metadata)
			}
		}
	})
}

func TestTheReasonAndTheMessageArriveVerbatim(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.Event(pod("a"), "Warning", "info: not a severity", "nothing is added at 2026-01-01")
		body := only(t, h, tr)
		var e events.Event
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatal(err)
		}
		if e.Reason != "info: not a severity" || e.Message != "nothing is added at 2026-01-01" || e.Severity != "error" {
			t.Errorf("%+v", e)
		}
	})
}

func TestEachRecordedEventIsLoggedAtVerbosityTwo(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "m")
		other := &logLines{}
		h.WithLogger(logr.New(other)).Event(pod("a"), "Normal", "R", "n")
		h.settled()
		lines := h.log.with(msgRecorded)
		if len(lines) != 1 || lines[0].Level != 2 || lines[0].Keys["message"] != "m" {
			t.Errorf("log: %v", h.log.lines)
		}
		if lines := other.with(msgRecorded); len(lines) != 1 || lines[0].Keys["message"] != "n" {
			t.Errorf("log of the view: %v", other.lines)
		}
	})
}

func TestWithLoggerReachesTheWrappedRecorder(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		wrapped := &loggerRecorder{}
		r, err := events.NewRecorderForScheme(scheme.Scheme, wrapped, logr.Discard(), "", "x")
		if err != nil {
			t.Fatal(err)
		}
		r.WithLogger(klog.Background()).Event(pod("a"), "Normal", "R", "m")
		if wrapped.loggers != 1 {
			t.Errorf("WithLogger of the wrapped recorder was called %d times", wrapped.loggers)
		}
	})
}

type loggerRecorder struct {
	deafRecorder
	loggers int
}

func (l *loggerRecorder) WithLogger(klog.Logger) record.EventRecorderLogger { l.loggers++; return l }

func TestTheWrappedRecorderIsUsedAsItIs(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		fake := record.NewFakeRecorder(3)
		r, err := events.NewRecorderForScheme(scheme.Scheme, fake, logr.Discard(), "", "x")
		if err != nil {
			t.Fatal(err)
		}
		r.Event(pod("a"), "Normal", "R", "one")
		r.Eventf(pod("a"), "Normal", "R", "t%so", "w")
		r.AnnotatedEventf(pod("a"), map[string]string{"k": "v"}, "Warning", "R", "three")
		for _, want := range []string{"Normal R one", "Normal R two", "Warning R three map[k:v]"} {
			if got := <-fake.Events; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	})
}
