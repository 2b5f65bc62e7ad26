package events_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	events "github.com/eventrecorder/events"
)

func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childVariable)]; ok {
		os.Exit(child())
	}
	klog.SetLogger(logr.Discard()) // client-go's own complaints
	log.SetOutput(io.Discard)      // and net/http's
	goleak.VerifyTestMain(m)
}

const controllerName = "test-controller"

// harness is a recorder with everything around it that a test looks at.
type harness struct {
	*events.EventRecorder
	t        *testing.T
	registry *prometheus.Registry
	log      *logLines
	kube     *kubeRecorder
}

// newHarness makes a recorder that posts to url. It must be shut down by the
// test if events may be left.
func newHarness(t *testing.T, url string, opts ...events.Option) *harness {
	t.Helper()
	h := &harness{t: t, registry: prometheus.NewRegistry(), log: &logLines{}, kube: &kubeRecorder{}}
	opts = append([]events.Option{events.WithMetricsRegisterer(h.registry)}, opts...)
	r, err := events.NewRecorderForScheme(scheme.Scheme, h.kube, logr.New(h.log), url, controllerName, opts...)
	if err != nil {
		t.Fatal(err)
	}
	h.EventRecorder = r
	return h
}

// on posts through a client of the given transport.
func on(transport interface{ Client() *http.Client }) events.Option {
	return events.WithHTTPClient(transport.Client())
}

// say records a Normal event about a pod.
func (h *harness) say(name, message string) {
	h.Event(pod(name), corev1.EventTypeNormal, "Testing", message)
}

// settled waits until everything recorded so far has an outcome.
func (h *harness) settled() {
	h.t.Helper()
	if err := h.Flush(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// shutdownNow ends the recorder without waiting for what is pending.
func (h *harness) shutdownNow() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = h.Shutdown(ctx)
}

// value reads one metric. The labels are pairs; controller is implied.
func (h *harness) value(name string, labels ...string) float64 {
	h.t.Helper()
	return metricValue(h.t, h.registry, name, append(labels, "controller", controllerName)...)
}

func metricValue(t *testing.T, g prometheus.Gatherer, name string, labels ...string) float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if hasLabels(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func hasLabels(m *dto.Metric, pairs []string) bool {
	for i := 0; i < len(pairs); i += 2 {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == pairs[i] && l.GetValue() == pairs[i+1]
		}) {
			return false
		}
	}
	return true
}

var outcomeNames = []string{
	"delivered", "duplicate", "unconfirmed", "coalesced", "rejected", "exhausted", "overflow", "expired", "invalid", "saved", "shutdown",
}

// outcomes returns the outcomes that are not zero, and fails the test unless
// recorded = outcomes + pending.
func (h *harness) outcomes() map[string]int {
	h.t.Helper()
	families, err := h.registry.Gather() // once: of one moment
	if err != nil {
		h.t.Fatal(err)
	}
	got := map[string]int{}
	recorded, sum := 0, 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "event_recorder_recorded_total":
				recorded = int(m.GetCounter().GetValue())
			case "event_recorder_pending_events":
				sum += int(m.GetGauge().GetValue())
				if n := int(m.GetGauge().GetValue()); n != 0 {
					got["pending"] = n
				}
			case "event_recorder_events_total":
				sum += int(m.GetCounter().GetValue())
				for _, l := range m.GetLabel() {
					if n := int(m.GetCounter().GetValue()); l.GetName() == "outcome" && n != 0 {
						got[l.GetValue()] = n
					}
				}
			}
		}
	}
	if recorded != sum {
		h.t.Errorf("recorded %d, outcomes and pending sum to %d: %v", recorded, sum, got)
	}
	return got
}

// wantOutcomes checks all outcomes, those that must be zero included.
func (h *harness) wantOutcomes(want map[string]int) {
	h.t.Helper()
	if got := h.outcomes(); !maps.Equal(got, want) {
		h.t.Errorf("outcomes %v, want %v", got, want)
	}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID("uid-" + name), ResourceVersion: "1",
	}}
}

// messages lists what arrived, in order.
func messages(taken []events.Event) []string {
	got := make([]string, 0, len(taken))
	for _, e := range taken {
		got = append(got, e.Message)
	}
	return got
}

// wantOrder fails unless the messages about each object, numbers at their end,
// arrived in the order of the numbers, and returns how many arrived.
func wantOrder(t *testing.T, taken []events.Event) int {
	t.Helper()
	last := map[string]int{}
	for _, e := range taken {
		var n int
		if _, err := fmt.Sscan(e.Message[strings.LastIndex(e.Message, " ")+1:], &n); err != nil {
			t.Fatalf("message %q: %v", e.Message, err)
		}
		name := e.InvolvedObject.Name
		if before, ok := last[name]; ok && n <= before {
			t.Fatalf("event %d of %s arrived after %d", n, name, before)
		}
		last[name] = n
	}
	return len(taken)
}

// kubeRecorder is a wrapped recorder that keeps what it is given.
type kubeRecorder struct {
	mu   sync.Mutex
	got  []kubeEvent
	hook func()
}

type kubeEvent struct {
	Object                corev1.ObjectReference
	Annotations           map[string]string
	Type, Reason, Message string
}

var _ record.EventRecorder = (*kubeRecorder)(nil)

func (k *kubeRecorder) Event(object runtime.Object, eventtype, reason, message string) {
	k.AnnotatedEventf(object, nil, eventtype, reason, "%s", message)
}

func (k *kubeRecorder) Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	k.AnnotatedEventf(object, nil, eventtype, reason, messageFmt, args...)
}

func (k *kubeRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hook != nil {
		k.hook()
	}
	e := kubeEvent{Annotations: annotations, Type: eventtype, Reason: reason, Message: fmt.Sprintf(messageFmt, args...)}
	if ref, ok := object.(*corev1.ObjectReference); ok {
		e.Object = *ref
	}
	k.got = append(k.got, e)
}

func (k *kubeRecorder) events() []kubeEvent {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.got)
}

// logLines is a logr.LogSink that keeps its lines.
type logLines struct {
	mu    sync.Mutex
	lines []logLine
	quiet bool // keeps only errors and level 0
	hook  func(message string)
}

type logLine struct {
	Time    time.Time
	Level   int // -1: error
	Message string
	Err     error
	Keys    map[string]any
}

func (l logLine) String() string {
	return fmt.Sprintf("%d %q err=%v %v", l.Level, l.Message, l.Err, l.Keys)
}

func (*logLines) Init(logr.RuntimeInfo)                  {}
func (l *logLines) Enabled(level int) bool               { return !l.quiet || level <= 0 }
func (l *logLines) WithValues(kv ...any) logr.LogSink    { return logView{l, kv} }
func (l *logLines) WithName(string) logr.LogSink         { return l }
func (l *logLines) Info(level int, m string, kv ...any)  { l.add(level, nil, m, kv) }
func (l *logLines) Error(err error, m string, kv ...any) { l.add(-1, err, m, kv) }

// logView is a logLines with values that every line has.
type logView struct {
	*logLines
	values []any
}

func (v logView) WithValues(kv ...any) logr.LogSink {
	return logView{v.logLines, append(slices.Clip(v.values), kv...)}
}
func (v logView) WithName(string) logr.LogSink { return v }
func (v logView) Info(level int, m string, kv ...any) {
	v.add(level, nil, m, append(slices.Clip(v.values), kv...))
}
func (v logView) Error(err error, m string, kv ...any) {
	v.add(-1, err, m, append(slices.Clip(v.values), kv...))
}

func (l *logLines) add(level int, err error, message string, kv []any) {
	line := logLine{Time: time.Now(), Level: level, Message: message, Err: err, Keys: map[string]any{}}
	if len(kv)%2 != 0 {
		line.Err = errors.Join(err, errors.New("odd number of keys and values"))
		line.Level = -1
	}
	for i := 0; i+1 < len(kv); i += 2 {
		line.Keys[kv[i].(string)] = kv[i+1]
	}
	l.mu.Lock()
	l.lines = append(l.lines, line)
	l.mu.Unlock()
	if l.hook != nil {
		l.hook(message)
	}
}

// with returns the lines of a message.
func (l *logLines) with(message string) []logLine {
	return l.matching(func(line logLine) bool { return line.Message == message })
}

// errors returns the lines at error level.
func (l *logLines) errors() []logLine {
	return l.matching(func(line logLine) bool { return line.Level < 0 })
}

func (l *logLines) matching(match func(logLine) bool) []logLine {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []logLine
	for _, line := range l.lines {
		if match(line) {
			found = append(found, line)
		}
	}
	return found
}

const (
	msgRecorded    = "Event recorded"
	msgDuplicate   = "Notification endpoint has this event already"
	msgLost        = "Event lost"
	msgUnconfirmed = "Event may be lost: it is a duplicate of an attempt that got no answer"
	msgOutage      = "Notification endpoint fails, events are kept"
	msgOutageOver  = "Notification endpoint works again"
	msgOutageIdle  = "Notification endpoint fails, and no event waits for it any more"
	msgMended      = "Kubernetes event changed to what the API takes"
	msgRelated     = "Related object left out of the event"
	msgStopped     = "Manager has stopped, pending events are delivered"
	msgSaved       = "Events are saved in the journal"
	msgRecovered   = "Events of an earlier process are delivered"
	msgDamaged     = "Journal is damaged, events may be missing"
	msgUnwritable  = "Journal cannot be written, events are kept in memory only"
)
