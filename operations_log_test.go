package events_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// logged returns the messages of all log calls in the sources. A message that
// is not a constant fails the test.
func logged(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	fset := token.NewFileSet()
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			at := map[string]int{"Info": 0, "Error": 1}
			i, ok := at[method.Sel.Name]
			if !ok || len(call.Args) <= i {
				return true // not a log call, as in err.Error()
			}
			literal, ok := call.Args[i].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the message of a log line is not a constant", fset.Position(call.Pos()))
				return true
			}
			message, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			found[message] = true
			return true
		})
	}
	return found
}

func TestOperationsListsEveryLogLineWithItsLevelAndKeys(t *testing.T) {
	levels, keys := map[string]string{}, map[string][]string{}
	for _, row := range table(t, "Message", "Level", "Keys") {
		message := code(row[0])[0]
		levels[message], keys[message] = row[1], code(row[2])
		slices.Sort(keys[message])
	}
	sources := logged(t)
	for message := range sources {
		if keys[message] == nil {
			t.Errorf("not in the table: %q", message)
		}
	}
	for message := range keys {
		if !sources[message] {
			t.Errorf("%q is in the table, but the recorder does not log it", message)
		}
	}
	for message := range knownMessages {
		if !sources[message] {
			t.Errorf("the tests know %q, but the recorder does not log it", message)
		}
	}

	gotLevels, gotKeys := map[string]string{}, map[string][]string{}
	for _, line := range provokeEveryLogLine(t) {
		level := map[int]string{-1: "error", 0: "info"}[line.Level]
		if level == "" {
			level = fmt.Sprint("verbosity ", line.Level)
		}
		if before, ok := gotLevels[line.Message]; ok && before != level {
			t.Errorf("%q is logged at %s and %s", line.Message, before, level)
		}
		gotLevels[line.Message] = level
		for key := range line.Keys {
			if !slices.Contains(gotKeys[line.Message], key) {
				gotKeys[line.Message] = append(gotKeys[line.Message], key)
			}
		}
	}
	for message := range keys {
		slices.Sort(gotKeys[message])
		if !slices.Equal(gotKeys[message], keys[message]) {
			t.Errorf("%q has the keys %v, %v in the table", message, gotKeys[message], keys[message])
		}
		if gotLevels[message] != levels[message] {
			t.Errorf("%q has the level %s, %s in the table", message, gotLevels[message], levels[message])
		}
	}
	for message := range gotLevels {
		if keys[message] == nil {
			t.Errorf("logged, but not in the table: %q", message)
		}
	}
}

// provokeEveryLogLine makes a recorder log all that it can log.
func provokeEveryLogLine(t *testing.T) (lines []logLine) {
	t.Helper()
	dir := t.TempDir()
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithEventsV1Recorder(&v1Recorder{}))
		h.say("a", "m")
		h.settled()
		h.say("a", "m") // a duplicate
		h.settled()
		tr.BehaveNext(eventstest.Reset())
		h.say("a", "m") // a duplicate of an attempt without an answer
		h.settled()
		h.Event(nil, "Normal", "Testing", "about nothing")
		h.EventsV1().Eventf(pod("a"), &unregisteredObject{}, "Normal", "Testing", "Test", "related to nothing")
		h.say("a", strings.Repeat("long ", 1000)) // too long for events.k8s.io
		h.settled()
		tr.Down()
		h.say("a", "an outage that ends well")
		time.Sleep(time.Minute)
		_ = tr.Up()
		h.settled()
		tr.Down()
		h.say("a", "an outage that ends with nothing left")
		time.Sleep(2 * time.Hour)
		_ = tr.Up()
		tr.Behave(eventstest.Respond(403, nil, "no"))
		for i := range 3 {
			h.say("a", fmt.Sprint("rejected ", i))
		}
		time.Sleep(2 * time.Minute) // the rest is said
		h.shutdownNow()
		lines = append(lines, h.log.matching(func(logLine) bool { return true })...)
		lines = append(lines, provokeJournalLines(t, tr, dir)...)
	})
	return lines
}

// provokeJournalLines makes a recorder with a journal log what only such a one logs,
// and its manager stop with pending events.
func provokeJournalLines(t *testing.T, tr *eventstest.Transport, dir string) []logLine {
	t.Helper()
	tr.Down()
	h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
	h.say("a", "left for the next process")
	time.Sleep(time.Second)
	h.shutdownNow()
	files, err := filepath.Glob(filepath.Join(dir, "*.journal"))
	if err != nil || len(files) != 1 {
		t.Fatalf("journals: %v, error %v", files, err)
	}
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("no record"); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()

	mgr := &stoppingManager{}
	recorder, err := events.NewRecorder(mgr, logr.New(h.log), tr.URL(), controllerName, on(tr), events.WithJournal(dir),
		events.WithMetricsRegisterer(h.registry))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	recorder.Event(pod("b"), "Normal", "Testing", "nowhere to write it")
	time.Sleep(time.Second)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := mgr.drain.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return h.log.matching(func(logLine) bool { return true })
}

// stoppingManager is as much of a manager as NewRecorder needs.
type stoppingManager struct {
	manager.Manager
	drain manager.Runnable
}

func (*stoppingManager) GetScheme() *runtime.Scheme                      { return scheme.Scheme }
func (*stoppingManager) GetEventRecorderFor(string) record.EventRecorder { return nil }

func (m *stoppingManager) Add(drain manager.Runnable) error {
	m.drain = drain
	return nil
}
