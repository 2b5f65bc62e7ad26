package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// column is one of the things that are compared.
type column int

const (
	ours      column = iota
	fluxPeer         // the recorder of github.com/fluxcd/pkg/runtime/events
	goroutine        // one per event
	clientGo         // client-go's recorder alone
	plainLoop        // a loop around net/http

	columns int = iota
)

var headings = [columns]string{
	"this library", "fluxcd/pkg/runtime", "goroutine per event", "client-go alone", "plain `net/http` loop",
}

func (c column) String() string { return headings[c] }

// report is what the measurements found.
type report struct {
	rows  []*row
	goals []goal
	steps []string // what makes a post dearer than a bare one
	notes []string
}

// row is a line of the table. An empty cell means that there is nothing to
// measure.
type row struct {
	what  string
	cells [columns]string
}

type goal struct {
	what     string
	got      string
	achieved bool
}

// row adds a line to the table.
func (r *report) row(what string) *row {
	added := &row{what: what}
	r.rows = append(r.rows, added)
	return added
}

func (l *row) set(c column, format string, args ...any) { l.cells[c] = fmt.Sprintf(format, args...) }

// goal adds what a measurement had to show.
func (r *report) goal(achieved bool, what, got string, args ...any) {
	r.goals = append(r.goals, goal{what, fmt.Sprintf(got, args...), achieved})
}

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func (r *report) achieved() bool {
	return !slices.ContainsFunc(r.goals, func(g goal) bool { return !g.achieved })
}

func (r *report) print(w io.Writer, s scale, took time.Duration) {
	if s.quick {
		fmt.Fprint(w, "**A quick run: these numbers mean nothing.**\n\n")
	}
	fmt.Fprintf(w, "Measured on %s in %v; %d cores, %s/%s, %s.\n",
		time.Now().Format(time.DateOnly), took.Round(time.Second), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Fprintf(w, "%s.\n", strings.Join(versions(), ", "))
	fmt.Fprintf(w, "Each number is the median of at least %d runs, and the runs of the recorders take turns or are at the same time,\n"+
		"so other work on the machine disturbs all of them alike. Endpoint and recorders share the machine: read ratios, not rates.\n\n",
		s.runs())

	fmt.Fprintf(w, "| | %s |\n", strings.Join(headings[:], " | "))
	fmt.Fprintf(w, "|%s\n", strings.Repeat("---|", columns+1))
	for _, l := range r.rows {
		cells := l.cells
		for i := range cells {
			if cells[i] == "" {
				cells[i] = "–"
			}
		}
		fmt.Fprintf(w, "| %s | %s |\n", l.what, strings.Join(cells[:], " | "))
	}

	fmt.Fprint(w, "\nGoals:\n\n")
	for _, g := range r.goals {
		verdict := "achieved"
		if !g.achieved {
			verdict = "**missed**"
		}
		fmt.Fprintf(w, "- %s: %s, %s\n", g.what, g.got, verdict)
	}
	if len(r.steps) > 0 {
		fmt.Fprint(w, "\nWhat a post has that a bare one has not, added to the plain loop, 1 object, endpoint answers at once:\n\n")
	}
	for _, step := range r.steps {
		fmt.Fprintf(w, "- %s\n", step)
	}
	if len(r.notes) > 0 {
		fmt.Fprint(w, "\nHow to read it:\n\n")
	}
	for _, n := range r.notes {
		fmt.Fprintf(w, "- %s\n", n)
	}
	fmt.Fprint(w, "\nWhat the others do better:\n\n")
	for _, n := range theirStrengths {
		fmt.Fprintf(w, "- %s\n", n)
	}
}

// theirStrengths is what a table of our own choice would hide.
var theirStrengths = []string{
	"The peer posts before its call returns. A process that is killed loses only the events whose calls have not returned. " +
		"This library loses what is pending, with a journal what was recorded in the last 100 ms.",
	"The peer and client-go hold no memory for the endpoint and start no goroutine. This library holds up to its limit (16 MiB) while the endpoint is down.",
	"With one caller, the peer posts the events of all objects in the order of the calls. Here that order holds for each object only.",
	"The peer's recorder has no state: nothing to flush, nothing to shut down, no metrics to register.",
	"client-go alone is all that is needed where nobody is notified.",
	"A goroutine per event posts every event at once, however many there are. This library posts 32 at a time unless told otherwise, " +
		"and one at a time for each object, so that it needs longer for an object with many events.",
}

// versions names what was compared.
func versions() []string {
	wanted := []string{
		"github.com/fluxcd/pkg/runtime", "github.com/fluxcd/pkg/apis/event", "k8s.io/client-go",
		"sigs.k8s.io/controller-runtime", "github.com/hashicorp/go-retryablehttp",
	}
	found := []string{"github.com/eventrecorder/events as in the working tree"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return append(found, "other versions unknown")
	}
	for _, path := range wanted {
		for _, m := range info.Deps {
			if m.Path == path {
				found = append(found, strings.TrimPrefix(path, "github.com/")+" "+m.Version)
			}
		}
	}
	return found
}

// duration shows a time with three digits or so.
func duration(d time.Duration) string {
	unit := time.Nanosecond
	for _, u := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= u {
			unit = u
			break
		}
	}
	return d.Round(max(unit/100, 1)).String()
}

// count shows a number with separators.
func count(n int) string {
	if n < 0 {
		return "-" + count(-n)
	}
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func countObjects(n int) string {
	if n == 1 {
		return "1 object"
	}
	return count(n) + " objects"
}

func mebibytes(n int) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
