package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-logr/logr"
)

const (
	columns     = 100 // how wide the output may be
	noteColumns = 78  // what is left of them after the times and the number
)

// timeline writes what happens, one line for each event that is recorded and
// one for its outcome.
type timeline struct {
	mu    sync.Mutex // guards all below
	out   io.Writer
	began time.Time
}

func (t *timeline) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = fmt.Fprintf(t.out, format, args...)
}

func (t *timeline) heading(log *eventLog, pace pace, embedded bool) {
	t.printf("%d events of a controller's log, %s, played %.1f times as fast\n"+
		"as they were recorded. The waits between an event's attempts are shortened alike, the pace\n"+
		"at which an endpoint that is down is tried, every 1 to 2 s, is not.\n", log.events, log.name, float64(pace))
	if embedded {
		t.printf("The notification endpoint is embedded; it goes down and comes back on the way.\n")
	}
	t.printf("\n   time  in log   no  object                      reason                     call\n")
}

// begin is when the clock starts.
func (t *timeline) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began = time.Now()
}

// recorded writes that an event was recorded.
func (t *timeline) recorded(r *row, note string) {
	t.row(inLog(r.seconds), r, fmt.Sprintf("%-23s  %6s  %s", cut(oneLine(r.reason), 23), short(r.call), note))
}

// answered writes the outcome of an event that the endpoint has answered.
func (t *timeline) answered(r *row, status int) {
	tries := ""
	if r.tries > 1 {
		tries = fmt.Sprintf(", %d tries", r.tries)
	}
	t.row("", r, fmt.Sprintf("→ %d %s, %s after the call%s", status, r.outcome, short(time.Since(r.recorded)), tries))
}

// complaints writes what is in the log but is no event.
func (t *timeline) complaints(e entry) {
	log := inLog(e.seconds)
	text := fmt.Sprintf("(In the original log, the recorder of that time failed %d times here: %s)", e.complaints, oneLine(e.complaint))
	for _, line := range wrap(text, noteColumns) {
		t.line(log, "", line)
		log = ""
	}
}

// note writes a sentence, on more than one line if need be.
func (t *timeline) note(format string, args ...any) {
	for _, line := range wrap(fmt.Sprintf(format, args...), noteColumns) {
		t.line("", "", line)
	}
}

func (t *timeline) row(log string, r *row, what string) {
	t.line(log, fmt.Sprint(r.number), fmt.Sprintf("%-26s  %s", cut(oneLine(r.object), 26), what))
}

func (t *timeline) line(log, number, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := fmt.Sprintf("%6.2fs  %6s %4s  %s", time.Since(t.began).Seconds(), log, number, what)
	_, _ = fmt.Fprintln(t.out, strings.TrimRight(cut(line, columns), " "))
}

// summary writes what became of the events. calls is sorted; open has the
// numbers of the events that the endpoint did not settle.
func (t *timeline) summary(m metrics, calls []time.Duration, open []int, written int) {
	t.printf("\n")
	if n := len(calls); n > 0 {
		t.printf("A call took %s in the median and %s at most.\n", short(calls[n/2]), short(calls[n-1]))
	}
	t.printf("client-go has handed out %d Kubernetes events.\n\n", written)

	outcomes := slices.SortedFunc(maps.Keys(m.outcomes), func(a, b string) int {
		return cmp.Or(cmp.Compare(m.outcomes[b], m.outcomes[a]), strings.Compare(a, b))
	})
	for _, outcome := range outcomes {
		if n := m.outcomes[outcome]; n > 0 {
			t.printf("%6d %s\n", n, outcome)
		}
	}
	t.printf("%6d pending\n", m.pending)
	t.printf("%6d in all, of %d recorded\n\n", m.sum(), m.recorded)
	if len(open) > 0 {
		text := fmt.Sprintf("Not settled by an answer of the endpoint: no %s.", strings.Trim(fmt.Sprint(open), "[]"))
		t.printf("%s\n", strings.Join(wrap(text, columns), "\n"))
	}
}

func inLog(seconds float64) string { return fmt.Sprintf("%.0f s", seconds) }

// short is a duration with no more digits than anyone reads.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// oneLine replaces what would break a line or move the cursor.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

func cut(s string, limit int) string {
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return s
}

// wrap breaks a text between words.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = "  " + word
		}
	}
	return append(lines, line)
}

// logSink puts into the timeline what the recorder logs.
type logSink struct{ timeline *timeline }

func (logSink) Init(logr.RuntimeInfo)            {}
func (logSink) Enabled(level int) bool           { return level == 0 }
func (s logSink) WithValues(...any) logr.LogSink { return s }
func (s logSink) WithName(string) logr.LogSink   { return s }

func (s logSink) Info(_ int, msg string, keysAndValues ...any) { s.write(msg, keysAndValues) }

func (s logSink) Error(err error, msg string, keysAndValues ...any) {
	if err != nil {
		keysAndValues = append(keysAndValues, "error", err)
	}
	s.write(msg, keysAndValues)
}

func (s logSink) write(msg string, keysAndValues []any) {
	msg = fmt.Sprintf("Log: %q", msg)
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		msg += fmt.Sprintf(" %v=%v", keysAndValues[i], keysAndValues[i+1])
	}
	s.timeline.note("%s", oneLine(msg))
}
