package events_test

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	kubeevents "k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// v1Event is a Kubernetes event as either backend was asked to write it.
type v1Event struct {
	Regarding, Related            string // names; "" if there is none
	Annotations                   map[string]string
	Type, Reason, Action, Message string
}

// v1Recorder is an events.k8s.io recorder as controller-runtime v0.23 and v0.24
// have it: it cannot carry annotations.
type v1Recorder struct {
	mu  sync.Mutex
	got []v1Event
}

var _ kubeevents.EventRecorder = (*v1Recorder)(nil)

func (k *v1Recorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	k.add(regarding, related, nil, eventtype, reason, action, fmt.Sprintf(note, args...))
}

func (k *v1Recorder) add(regarding, related runtime.Object, annotations map[string]string, eventtype, reason, action, note string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := v1Event{Annotations: annotations, Type: eventtype, Reason: reason, Action: action, Message: note}
	e.Regarding = regarding.(*corev1.ObjectReference).Name
	if related != nil {
		e.Related = related.(*corev1.ObjectReference).Name // would panic on a typed nil
	}
	k.got = append(k.got, e)
}

// annotatedV1Recorder is that of controller-runtime v0.25.
type annotatedV1Recorder struct{ v1Recorder }

func (k *annotatedV1Recorder) AnnotatedEventf(regarding, related runtime.Object, annotations map[string]string, eventtype, reason, action, note string, args ...any) {
	k.add(regarding, related, annotations, eventtype, reason, action, fmt.Sprintf(note, args...))
}

// The whole table: what is called on which view, what either Kubernetes API is
// asked to write, and what is posted, which depends on the call alone.
func TestEveryViewWorksOnEveryBackend(t *testing.T) {
	long := strings.Repeat("0123456789", 500)      // 5,000 bytes
	wide := strings.Repeat("ü", 600)               // 1,200 bytes, 600 characters
	odd := "x" + strings.Repeat("\U0001F98A", 255) // 1,021 bytes: fits
	annotations := map[string]string{"k": "v"}
	type call struct {
		core                    bool
		related                 runtime.Object
		annotations             map[string]string
		eventtype, reason, verb string // verb: the action
		note                    string
	}
	for _, test := range []struct {
		name string
		call call
		core v1Event // as core/v1 is asked to write it; no Action there
		v1   v1Event // as events.k8s.io is
		post string  // the payload after the involved object, but for time and instance
	}{
		{
			"core, plain",
			call{core: true, eventtype: "Normal", reason: "R", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "R", "m"},
			`"severity":"info",T,"message":"m","reason":"R",C`,
		},
		{
			"core, annotated",
			call{core: true, annotations: annotations, eventtype: "Warning", reason: "R", note: "100%"},
			v1Event{"a", "", annotations, "Warning", "R", "", "100%"},
			v1Event{"a", "", annotations, "Warning", "R", "R", "100%"},
			`"severity":"error",T,"message":"100%","reason":"R","metadata":{"k":"v"},C`,
		},
		{
			"core, long note",
			call{core: true, eventtype: "Normal", reason: "R", note: long},
			v1Event{"a", "", nil, "Normal", "R", "", long},
			v1Event{"a", "", nil, "Normal", "R", "R", long[:1021] + "…"},
			`"severity":"info",T,"message":"` + long + `","reason":"R",C`,
		},
		{
			"core, multi-byte note",
			call{core: true, eventtype: "Normal", reason: "R", note: wide},
			v1Event{"a", "", nil, "Normal", "R", "", wide},
			v1Event{"a", "", nil, "Normal", "R", "R", strings.Repeat("ü", 510) + "…"},
			`"severity":"info",T,"message":"` + wide + `","reason":"R",C`,
		},
		{
			"core, invalid UTF-8",
			call{core: true, eventtype: "Normal", reason: "R", note: "a\xffb"},
			v1Event{"a", "", nil, "Normal", "R", "", "a\xffb"},
			v1Event{"a", "", nil, "Normal", "R", "R", "a\uFFFDb"},
			`"severity":"info",T,"message":"a\ufffdb","reason":"R",C`,
		},
		{
			"core, invalid UTF-8 that grows when it is replaced",
			call{core: true, eventtype: "Normal", reason: "R", note: strings.Repeat("a\xff", 400)},
			v1Event{"a", "", nil, "Normal", "R", "", strings.Repeat("a\xff", 400)},
			v1Event{"a", "", nil, "Normal", "R", "R", strings.Repeat("a\uFFFD", 255) + "a…"},
			`"severity":"info",T,"message":"` + strings.Repeat(`a\ufffd`, 400) + `","reason":"R",C`,
		},
		{
			"core, no reason",
			call{core: true, eventtype: "Normal", note: "m"},
			v1Event{"a", "", nil, "Normal", "", "", "m"},
			v1Event{"a", "", nil, "Normal", "Unknown", "Unknown", "m"},
			`"severity":"info",T,"message":"m","reason":"",C`,
		},
		{
			"core, Trace",
			call{core: true, eventtype: "Trace", reason: "R", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "R", "m"},
			``,
		},
		{
			"core, unknown type",
			call{core: true, eventtype: "Strange", reason: "R", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "R", "m"},
			`"severity":"info",T,"message":"m","reason":"R",C`,
		},
		{
			"events.k8s.io, unknown type",
			call{eventtype: "warning", reason: "R", verb: "A", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "A", "m"},
			`"severity":"info",T,"message":"m","reason":"R","action":"A",C`,
		},
		{
			"events.k8s.io, plain",
			call{eventtype: "Normal", reason: "R", verb: "A", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "A", "m"},
			`"severity":"info",T,"message":"m","reason":"R","action":"A",C`,
		},
		{
			"events.k8s.io, annotated and with related",
			call{related: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, annotations: annotations, eventtype: "Warning", reason: "R", verb: "A", note: "%s"},
			v1Event{"a", "", annotations, "Warning", "R", "", "%s"},
			v1Event{"a", "n", annotations, "Warning", "R", "A", "%s"},
			`"relatedObject":{"kind":"Node","name":"n","apiVersion":"v1"},"severity":"error",T,"message":"%s","reason":"R","action":"A","metadata":{"k":"v"},C`,
		},
		{
			"events.k8s.io, related that is a typed nil",
			call{related: (*corev1.Node)(nil), eventtype: "Normal", reason: "R", verb: "A", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "A", "m"},
			`"severity":"info",T,"message":"m","reason":"R","action":"A",C`,
		},
		{
			"events.k8s.io, related that cannot be referenced",
			call{related: &unregisteredObject{}, eventtype: "Normal", reason: "R", verb: "A", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "A", "m"},
			`"severity":"info",T,"message":"m","reason":"R","action":"A",C`,
		},
		{
			"events.k8s.io, empty action",
			call{eventtype: "Normal", reason: "R", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "R", "m"},
			`"severity":"info",T,"message":"m","reason":"R",C`,
		},
		{
			"events.k8s.io, empty reason",
			call{eventtype: "Normal", verb: "A", note: "m"},
			v1Event{"a", "", nil, "Normal", "", "", "m"},
			v1Event{"a", "", nil, "Normal", "A", "A", "m"},
			`"severity":"info",T,"message":"m","reason":"","action":"A",C`,
		},
		{
			"events.k8s.io, reason and action too long",
			call{eventtype: "Normal", reason: strings.Repeat("r", 129), verb: strings.Repeat("ä", 65), note: "m"},
			v1Event{"a", "", nil, "Normal", strings.Repeat("r", 129), "", "m"},
			v1Event{"a", "", nil, "Normal", strings.Repeat("r", 125) + "…", strings.Repeat("ä", 62) + "…", "m"},
			`"severity":"info",T,"message":"m","reason":"` + strings.Repeat("r", 129) + `","action":"` + strings.Repeat("ä", 65) + `",C`,
		},
		{
			"events.k8s.io, a note that just fits",
			call{eventtype: "Normal", reason: "R", verb: "A", note: odd + "abc"},
			v1Event{"a", "", nil, "Normal", "R", "", odd + "abc"},
			v1Event{"a", "", nil, "Normal", "R", "A", odd + "abc"},
			`"severity":"info",T,"message":"` + odd + `abc","reason":"R","action":"A",C`,
		},
		{
			"events.k8s.io, a note one byte too long, cut before a character of four",
			call{eventtype: "Normal", reason: "R", verb: "A", note: odd + "abcd"},
			v1Event{"a", "", nil, "Normal", "R", "", odd + "abcd"},
			v1Event{"a", "", nil, "Normal", "R", "A", odd + "…"},
			`"severity":"info",T,"message":"` + odd + `abcd","reason":"R","action":"A",C`,
		},
		{
			"events.k8s.io, Trace",
			call{eventtype: "Trace", reason: "R", verb: "A", note: "m"},
			v1Event{"a", "", nil, "Normal", "R", "", "m"},
			v1Event{"a", "", nil, "Normal", "R", "A", "m"},
			``,
		},
	} {
		for _, backend := range []string{"core/v1", "events.k8s.io", "events.k8s.io with annotations"} {
			t.Run(test.name+" on "+backend, func(t *testing.T) {
				bubble(t, func(t *testing.T, tr *eventstest.Transport) {
					plain, annotated := &v1Recorder{}, &annotatedV1Recorder{}
					opts := []events.Option{on(tr)}
					switch backend {
					case "events.k8s.io":
						opts = append(opts, events.WithEventsV1Recorder(plain))
					case "events.k8s.io with annotations":
						opts = append(opts, events.WithEventsV1Recorder(annotated))
					}
					h := newHarness(t, tr.URL(), opts...)
					c := test.call
					if c.core {
						h.AnnotatedEventf(pod("a"), c.annotations, c.eventtype, c.reason, "%s", c.note)
					} else {
						h.EventsV1().AnnotatedEventf(pod("a"), c.related, c.annotations, c.eventtype, c.reason, c.verb, "%s", c.note)
					}
					h.settled()

					want, got := test.v1, plain.got
					switch backend {
					case "core/v1":
						want, got = test.core, nil
						for _, e := range h.kube.events() {
							got = append(got, v1Event{e.Object.Name, "", e.Annotations, e.Type, e.Reason, "", e.Message})
						}
					case "events.k8s.io":
						want.Annotations = nil // that recorder cannot carry them
					default:
						got = annotated.got
					}
					if len(got) != 1 || !reflect.DeepEqual(got[0], want) {
						t.Errorf("Kubernetes event\n%+v\nwant\n%+v", got, want)
					}

					host, _ := os.Hostname()
					post := strings.NewReplacer(",T,", `,"timestamp":"`+bubbleTime+`",`,
						",C", `,"reportingController":"`+controllerName+`","reportingInstance":"`+host+`"}`).Replace(test.post)
					const involved = `{"involvedObject":{"kind":"Pod","namespace":"default","name":"a","uid":"uid-a","apiVersion":"v1","resourceVersion":"1"},`
					switch requests := tr.Requests(); {
					case post == "" && len(requests) != 0:
						t.Error("posted")
					case post != "" && (len(requests) != 1 || string(requests[0].Body) != involved+post):
						t.Errorf("payload\n%+v\nwant\n%s", requests, involved+post)
					}
				})
			})
		}
	}
}

func TestEventsOfBothViewsKeepOneOrder(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		v := h.EventsV1()
		for i := range 20 {
			if i%2 == 0 {
				h.Eventf(pod("a"), "Normal", "R", "event %d", i)
			} else {
				v.Eventf(pod("a"), nil, "Normal", "R", "A", "event %d", i)
			}
		}
		h.settled()
		if n := wantOrder(t, tr.Events()); n != 20 {
			t.Errorf("%d events arrived", n)
		}
	})
}

func TestTheLogSaysWhatWasChangedInAKubernetesEvent(t *testing.T) {
	long := strings.Repeat("long ", 1000)
	for name, test := range map[string]struct {
		record func(h *harness)
		want   []string // the key "changed" of each line
	}{
		"nothing": {func(h *harness) { h.EventsV1().Eventf(pod("a"), nil, "Normal", "R", "A", "m") }, nil},
		// Filled in, as for every such call.
		"no action":   {func(h *harness) { h.Event(pod("a"), "Normal", "R", "m") }, nil},
		"a note":      {func(h *harness) { h.Event(pod("a"), "Normal", "R", long) }, []string{"[note]"}},
		"an action":   {func(h *harness) { h.EventsV1().Eventf(pod("a"), nil, "Normal", "R", long, "m") }, []string{"[action]"}},
		"a reason":    {func(h *harness) { h.EventsV1().Eventf(pod("a"), nil, "Normal", long, "A", "m") }, []string{"[reason]"}},
		"annotations": {func(h *harness) { h.AnnotatedEventf(pod("a"), map[string]string{"a/b/c": ""}, "Normal", "R", "m") }, []string{"[annotations]"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, "", events.WithEventsV1Recorder(&v1Recorder{}))
			test.record(h)
			var got []string
			for _, line := range h.log.with(msgMended) {
				got = append(got, fmt.Sprint(line.Keys["changed"]))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("changed %v, want %v", got, test.want)
			}
		})
	}
}

func TestEventsV1WithLoggerReachesTheBackend(t *testing.T) {
	wrapped := &loggerV1Recorder{}
	log := &logLines{}
	r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), "", "x", events.WithEventsV1Recorder(wrapped))
	if err != nil {
		t.Fatal(err)
	}
	r.EventsV1().WithLogger(logr.New(log)).Eventf(pod("a"), nil, "Normal", "R", "A", strings.Repeat("long ", 1000))
	if wrapped.loggers != 1 || len(wrapped.got) != 1 {
		t.Errorf("%d loggers, %d events", wrapped.loggers, len(wrapped.got))
	}
	if lines := log.with(msgMended); len(lines) != 1 || lines[0].Level != 1 || fmt.Sprint(lines[0].Keys["changed"]) != "[note]" {
		t.Errorf("log: %v", log.lines)
	}
}

type loggerV1Recorder struct {
	v1Recorder
	loggers int
}

func (l *loggerV1Recorder) WithLogger(klog.Logger) kubeevents.EventRecorderLogger {
	l.loggers++
	return l
}

func TestAReportingControllerThatEventsV1RefusesIsAnError(t *testing.T) {
	v1 := events.WithEventsV1Recorder(&v1Recorder{})
	for _, name := range []string{"", "has spaces", strings.Repeat("x", 64), "a/b/c", "-x", "x\n", "/x", strings.Repeat("x.", 50) + "x/" + strings.Repeat("x", 63)} {
		if err := construct("http://host/", name, v1); err == nil || !strings.Contains(err.Error(), "reporting controller") {
			t.Errorf("%q: error %v", name, err)
		}
		if err := construct("http://host/", name); err != nil {
			t.Errorf("%q on core/v1, which takes anything: %v", name, err)
		}
	}
	for _, name := range []string{"x", "kustomize-controller", "example.com/my-controller"} {
		if err := construct("http://host/", name, v1); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// The API server takes a reporting instance of at most 128 bytes.
func TestAReportingControllerMayBeAsLongAsTheHostNameAllows(t *testing.T) {
	host, _ := os.Hostname()
	most := 128 - len("-") - len(host)
	if most < len("x/x") {
		t.Skip("the host name allows none")
	}
	v1 := events.WithEventsV1Recorder(&v1Recorder{})
	longest := strings.Repeat("x", most-len("/x")) + "/x"
	if err := construct("http://host/", longest, v1); err != nil {
		t.Errorf("%d bytes: %v", most, err)
	}
	wantError(t, construct("http://host/", "x"+longest, v1), "events: reporting controller ", ": 129 bytes with a hyphen and the host name, events.k8s.io takes at most 128")
}

// client-go's own recorders and fakes, which is what controllers pass.
func TestClientGosEventsV1RecorderWorksAsABackend(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		fake := kubeevents.NewFakeRecorder(2)
		r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), tr.URL(), "x", on(tr),
			events.WithEventsV1Recorder(fake), events.WithMetricsRegisterer(prometheus.NewRegistry()))
		if err != nil {
			t.Fatal(err)
		}
		r.Event(pod("a"), "Normal", "R", "100%")
		if got := <-fake.Events; got != "Normal R 100%" {
			t.Errorf("%q", got)
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Neither API takes an event with such annotations: it is written without them, and
// posted with them.
func TestAnnotationsThatTheAPIRefusesAreLeftOutOfTheKubernetesEventOnly(t *testing.T) {
	const limit = 256 << 10
	fits := strings.Repeat("x", limit-len("ab")-len("v"))
	for name, test := range map[string]struct{ given, want map[string]string }{
		"good ones":                 {map[string]string{"k": "v", "example.com/A_b.c-d": "", "UPPER": "v"}, map[string]string{"k": "v", "example.com/A_b.c-d": "", "UPPER": "v"}},
		"one is no qualified name":  {map[string]string{"k": "v", "has space": "v", "-x": "v", "a/b/c": "v", "": "v", "/x": "v"}, map[string]string{"k": "v"}},
		"none is a qualified name":  {map[string]string{"has space": "v"}, nil},
		"a name that is too long":   {map[string]string{"k": "v", strings.Repeat("x", 64): "v"}, map[string]string{"k": "v"}},
		"exactly the limit":         {map[string]string{"a": "v", "b": fits}, map[string]string{"a": "v", "b": fits}},
		"one byte too much":         {map[string]string{"a": "v", "b": fits + "x", "c": "v"}, map[string]string{"a": "v", "c": "v"}},
		"too much of nothing valid": {map[string]string{"a b": strings.Repeat("x", limit)}, nil},
		"a bad one does not count":  {map[string]string{"a": "v", "b": fits, "a b": "v"}, map[string]string{"a": "v", "b": fits}},
	} {
		for _, backend := range []string{"core/v1", "events.k8s.io"} {
			t.Run(name+" on "+backend, func(t *testing.T) {
				bubble(t, func(t *testing.T, tr *eventstest.Transport) {
					v1 := &annotatedV1Recorder{}
					opts := []events.Option{on(tr)}
					if backend != "core/v1" {
						opts = append(opts, events.WithEventsV1Recorder(v1))
					}
					h := newHarness(t, tr.URL(), opts...)
					given := maps.Clone(test.given)
					h.AnnotatedEventf(pod("a"), given, "Normal", "R", "m")
					h.settled()
					var got []map[string]string
					for _, e := range h.kube.events() {
						got = append(got, e.Annotations)
					}
					for _, e := range v1.got {
						got = append(got, e.Annotations)
					}
					if len(got) != 1 || !maps.Equal(got[0], test.want) {
						t.Errorf("%d Kubernetes events, annotations %d of %d", len(got), len(got[0]), len(test.given))
					}
					if !maps.Equal(tr.Events()[0].Metadata, test.given) || !maps.Equal(given, test.given) {
						t.Error("the payload or the caller's map was changed")
					}
					lines := h.log.with(msgMended)
					if len(test.want) == len(test.given) {
						if len(lines) != 0 {
							t.Errorf("log: %v", lines)
						}
					} else if len(lines) != 1 || lines[0].Level != 1 || fmt.Sprint(lines[0].Keys["changed"]) != "[annotations]" || lines[0].Keys["api"] != backend || lines[0].Keys["name"] != "a" {
						t.Errorf("log: %v", lines)
					}
				})
			})
		}
	}
}

// References that the caller gives are the caller's: the recorder reads them during
// the call, and nobody is handed them to write to.
func TestReferencesOfTheCallerAreNeverWrittenTo(t *testing.T) {
	vandal := vandalV1Recorder{}
	for name, opts := range map[string][]events.Option{"core/v1": nil, "events.k8s.io": {events.WithEventsV1Recorder(vandal)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				r, err := events.NewRecorderForScheme(scheme.Scheme, vandalRecorder{}, logr.Discard(), tr.URL(), "x",
					append(opts, on(tr), events.WithMetricsRegisterer(prometheus.NewRegistry()))...)
				if err != nil {
					t.Fatal(err)
				}
				regarding := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "a"}
				related := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: "n"}
				annotations := map[string]string{"k": "v"}
				wantRegarding, wantRelated := *regarding, *related
				r.EventsV1().AnnotatedEventf(regarding, related, annotations, "Normal", "R", "A", "m")
				if *regarding != wantRegarding || *related != wantRelated || annotations["k"] != "v" {
					t.Errorf("written to: %+v, %+v, %v", regarding, related, annotations)
				}
				*related, *regarding = corev1.ObjectReference{}, corev1.ObjectReference{}
				if err := r.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				if e := tr.Events()[0]; e.InvolvedObject != wantRegarding || *e.RelatedObject != wantRelated || e.Metadata["k"] != "v" {
					t.Errorf("payload %+v", e)
				}
			})
		})
	}
}

// vandalV1Recorder writes to all that it is given.
type vandalV1Recorder struct{}

func (v vandalV1Recorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	v.AnnotatedEventf(regarding, related, nil, eventtype, reason, action, note, args...)
}

func (vandalV1Recorder) AnnotatedEventf(regarding, related runtime.Object, annotations map[string]string, _, _, _, _ string, _ ...any) {
	regarding.(*corev1.ObjectReference).Name = "vandalized"
	related.(*corev1.ObjectReference).Name = "vandalized"
	if annotations != nil {
		annotations["k"] = "vandalized"
	}
}
