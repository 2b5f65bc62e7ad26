package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eventrecorder/events/examples/dependency/story"
)

const (
	columnWidth = 44
	barred      = "┃ " // before what happens while a worker is blocked
)

// step is the precision of the printed times: what happens within it stands in
// one row.
const step = 5 * time.Second

// writeText prints both timelines side by side, and what came of it.
func writeText(w io.Writer, plan story.Plan, tellings [2]telling) error {
	var b strings.Builder
	fmt.Fprintf(&b, "B depends on A, which needs %s. B checks A every %s and records an event each time.\n",
		clock(plan.Told(plan.AReady)), clock(plan.Told(plan.RetryInterval)))
	fmt.Fprintf(&b, "The endpoint is unreachable for a moment, and answers 429 to what it has already, with a\n"+
		"Retry-After of %s. A minute of the story takes %s. Times are those of the story.\n\n",
		clock(plan.Told(plan.RetryAfter)), plan.Minute)
	row(&b, "time", strings.ToUpper(tellings[0].Name), strings.ToUpper(tellings[1].Name))
	for _, r := range rows(plan, tellings) {
		row(&b, r.time, r.cells[0], r.cells[1])
	}

	b.WriteString("\n")
	sum := func(name string, value func(*story.Timeline) string) {
		row(&b, "", fmt.Sprintf("%-26s%s", name, value(tellings[0].Timeline)), fmt.Sprintf("%-26s%s", name, value(tellings[1].Timeline)))
	}
	sum("A ready after", func(t *story.Timeline) string { return readyClock(plan, t, story.NameA) })
	sum("B ready after", func(t *story.Timeline) string { return readyClock(plan, t, story.NameB) })
	sum("a worker was blocked for", func(t *story.Timeline) string {
		took := t.LongestCall().Took
		return fmt.Sprintf("%s (%s)", clock(plan.Told(took)), round(took))
	})
	_, err := io.WriteString(w, b.String())
	return err
}

func row(b *strings.Builder, time, left, right string) {
	left += strings.Repeat(" ", max(0, columnWidth-utf8.RuneCountInString(left)))
	b.WriteString(strings.TrimRight(fmt.Sprintf("%5s  %s  %s", time, left, right), " ") + "\n")
}

// textRow is a line of both timelines.
type textRow struct {
	time  string
	cells [2]string
}

// rows puts what happens in both timelines at the same time into the same rows.
func rows(plan story.Plan, tellings [2]telling) []textRow {
	at := make(map[time.Duration][2][]string)
	var end time.Duration
	for i, t := range tellings {
		for _, c := range cells(plan, t.Timeline) {
			both := at[c.at]
			both[i] = append(both[i], c.text)
			at[c.at] = both
			end = max(end, c.at)
		}
	}
	var rows []textRow
	for now := time.Duration(0); now <= end; now += step {
		both := at[now]
		for i := range max(len(both[0]), len(both[1])) {
			r := textRow{}
			if i == 0 {
				r.time = clock(now)
			}
			for side := range both {
				if i < len(both[side]) {
					r.cells[side] = both[side][i]
				} else if b, ok := blocked(plan, tellings[side].Timeline); ok && b.within(plan, now) {
					r.cells[side] = barred
				}
			}
			rows = append(rows, r)
		}
	}
	return rows
}

// cell is what happens at a time, rounded to a step.
type cell struct {
	at   time.Duration
	text string
}

// cells are what happens in one timeline, in the order of time.
func cells(plan story.Plan, t *story.Timeline) []cell {
	var cells []cell
	b, isBlocked := blocked(plan, t)
	add := func(at time.Duration, text string) {
		if isBlocked && at > b.from && at < b.to {
			text = barred + text
		}
		cells = append(cells, cell{plan.Told(at).Round(step), text})
	}
	free := func(at time.Duration) {
		if isBlocked && at >= b.to {
			add(b.to, fmt.Sprintf("B's worker goes on, after %s", clock(plan.Told(b.to-b.from))))
			isBlocked = false
		}
	}
	again := make(map[string]bool) // the next attempt for an object is a retry
	for _, m := range t.Moments() {
		free(m.At)
		switch m.Kind {
		case story.Recorded:
			if m.Reason == story.ReasonNotReady {
				add(m.At, fmt.Sprintf("%s waits for A", strings.ToUpper(m.Object)))
			}
		case story.Ready:
			add(m.At, fmt.Sprintf("%s IS READY", strings.ToUpper(m.Object)))
		case story.Answered:
			posted := "posted"
			if again[m.Object] {
				posted = "posted again"
			}
			add(m.At, fmt.Sprintf("  %s: %s", posted, answer(plan, m.Status)))
			// An answer in the middle of a call is not what ends it.
			again[m.Object] = m.Status == 0 || m.Object == story.NameB && isBlocked && m.At > b.from && b.to-m.At > plan.RetryInterval
		case story.Down:
			add(m.At, "the endpoint becomes unreachable")
		case story.Up:
			add(m.At, "the endpoint is back")
		}
	}
	return cells
}

func answer(plan story.Plan, status int) string {
	switch status {
	case 0:
		return "connection refused"
	case 202:
		return "202"
	case 429:
		return "429, Retry-After " + clock(plan.Told(plan.RetryAfter))
	}
	return fmt.Sprint(status)
}

// span is a time in which a worker was blocked by the endpoint.
type span struct{ from, to time.Duration }

// blocked returns the longest such time, if there is one.
func blocked(plan story.Plan, t *story.Timeline) (span, bool) {
	call, ok := plan.Blocked(t)
	return span{call.At, call.At + call.Took}, ok
}

// within reports whether a row of that time lies in the span.
func (s span) within(plan story.Plan, now time.Duration) bool {
	return now >= plan.Told(s.from).Round(step) && now <= plan.Told(s.to).Round(step)
}

func readyClock(plan story.Plan, t *story.Timeline, object string) string {
	at, ok := t.ReadyAt(object)
	if !ok {
		return "never"
	}
	return clock(plan.Told(at))
}

// clock shows a duration as minutes and seconds.
func clock(d time.Duration) string {
	seconds := int(d.Round(time.Second) / time.Second)
	return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
}

// round shows a real duration.
func round(d time.Duration) string {
	if d < time.Millisecond {
		return d.Round(time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}
