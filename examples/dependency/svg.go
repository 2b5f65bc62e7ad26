package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/eventrecorder/events/examples/dependency/story"
)

// The picture is a card with a background of its own, so it can be read on a
// page of any colour. Lengths are in pixels.
const (
	svgWidth    = 860
	margin      = 28
	chartLeft   = 112
	chartRight  = svgWidth - 96 // leaves room for a label at the end
	panelTop    = 134
	panelHeight = 156
	barHeight   = 26
	svgHeight   = panelTop + 2*panelHeight + 44
)

// style has the colours for a light page and for a dark one. They are spelled
// out for each class: not every viewer knows variables.
const style = `
text { font: 13px system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 20px; font-weight: 600 }
.head { font-size: 15px; font-weight: 600 }
.muted { fill: #59636e }
.small { font-size: 12px }
.late { font-size: 15px; font-weight: 600; fill: #b3261e }
.soon { font-size: 15px; font-weight: 600; fill: #1a7f37 }
.onbar { font-weight: 600; fill: #ffffff }
.card { fill: #ffffff; stroke: #d1d9e0 }
.grid { stroke: #e1e5ea }
.rule { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 4 3 }
.wait { fill: #bcd8f6 }
.look { fill: #2f6db5 }
.blocked { fill: #c62f28 }
.stripe { stroke: #ffffff; stroke-opacity: .18; stroke-width: 5 }
.line { fill: #d1d9e0 }
.away { fill: #59636e }
.told { fill: #9a6700 }
.ready { fill: #1a7f37 }
.tick { fill: none; stroke: #ffffff; stroke-width: 2.2; stroke-linecap: round; stroke-linejoin: round }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.muted { fill: #a3abb5 }
.late { fill: #ff8f88 }
.soon { fill: #56d364 }
.onbar { fill: #ffffff }
.card { fill: #12171e; stroke: #3d444d }
.grid { stroke: #2a313a }
.rule { stroke: #f0f6fc }
.wait { fill: #274f7d }
.look { fill: #8fc1ff }
.blocked { fill: #cf3a33 }
.line { fill: #3d444d }
.away { fill: #a3abb5 }
.told { fill: #d4a72c }
.ready { fill: #2ea043 }
}
`

// drawing writes the elements of the picture.
type drawing struct {
	bytes.Buffer
	plan story.Plan
	end  time.Duration // of the time axis, in the story
}

// drawSVG draws both timelines.
func drawSVG(plan story.Plan, tellings [2]telling) []byte {
	d := &drawing{plan: plan, end: axisEnd(plan, tellings)}
	d.put(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-labelledby="title desc">`,
		svgWidth, svgHeight)
	d.put(`<title id="title">B waits for A: posting events on the caller's goroutine, and in the background</title>`)
	d.put(`<desc id="desc">%s</desc>`, html.EscapeString(describe(plan, tellings)))
	d.put(`<style>%s</style>`, style)
	d.put(`<defs><pattern id="stripes" width="12" height="12" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">` +
		`<line class="stripe" x1="3" y1="0" x2="3" y2="12"/></pattern></defs>`)
	d.put(`<rect class="card" x=".5" y=".5" width="%d" height="%d" rx="12"/>`, svgWidth-1, svgHeight-1)

	d.text(margin, 42, "title", "B waits for A. Must it wait for the notification endpoint too?")
	d.text(margin, 66, "muted", "The endpoint is unreachable for a moment, then says 429 to an event that it has already, with")
	d.text(margin, 84, "muted", fmt.Sprintf("a Retry-After of %.0f minutes. B checks A every %.0f seconds and records an event each time.",
		plan.Told(plan.RetryAfter).Minutes(), plan.Told(plan.RetryInterval).Seconds()))
	d.legend(108)

	bottom := panelTop + 2*panelHeight
	for minute := time.Duration(0); minute <= d.end; minute += time.Minute {
		d.label(d.x(minute), float64(bottom+8), "small muted", "middle", clock(minute))
	}
	d.label(chartRight, float64(bottom+26), "small muted", "end", "minutes")
	for i, t := range tellings {
		d.panel(panelTop+i*panelHeight, t)
	}
	d.put(`</svg>`)
	return d.Bytes()
}

// describe says in words what the picture shows.
func describe(plan story.Plan, tellings [2]telling) string {
	var parts []string
	for _, t := range tellings {
		parts = append(parts, fmt.Sprintf("%s: A is ready at %s, B at %s.",
			t.Name, readyClock(plan, t.Timeline, story.NameA), readyClock(plan, t.Timeline, story.NameB)))
	}
	return strings.Join(parts, " ")
}

// axisEnd is the first full minute after everything that happened.
func axisEnd(plan story.Plan, tellings [2]telling) time.Duration {
	end := time.Minute
	for _, t := range tellings {
		for _, m := range t.Moments() {
			end = max(end, plan.Told(m.At+m.Took))
		}
	}
	return time.Duration(math.Ceil(end.Minutes())) * time.Minute
}

// panel draws one timeline.
func (d *drawing) panel(top int, t telling) {
	a, _ := t.ReadyAt(story.NameA)
	b, _ := t.ReadyAt(story.NameB)
	rowA, rowB, rowEndpoint := float64(top+46), float64(top+84), float64(top+122)

	for minute := time.Duration(0); minute <= d.end; minute += time.Minute {
		d.put(`<line class="grid" x1="%.1f" y1="%d" x2="%.1[1]f" y2="%[3]d"/>`, d.x(minute), top+42, top+panelHeight-16)
	}
	d.text(margin, top+26, "head", t.Name)
	verdict := "soon"
	if b-a > d.plan.RetryInterval {
		verdict = "late"
	}
	d.label(svgWidth-margin, float64(top+26), verdict, "end", fmt.Sprintf("B is ready %s after A", clock(d.plan.Told(b-a))))

	d.text(margin, int(rowA)+18, "", "A")
	d.bar("wait", 0, a, rowA, barHeight)
	d.text(margin, int(rowB)+18, "", "B")
	d.bar("wait", 0, b, rowB, barHeight)
	d.text(margin, int(rowEndpoint)+10, "muted", "Endpoint")
	d.outage(t, rowEndpoint)

	if s, ok := blocked(d.plan, t.Timeline); ok {
		d.bar("blocked", s.from, s.to, rowB, barHeight)
		d.put(`<rect fill="url(#stripes)" x="%.1f" y="%.1f" width="%.1f" height="%d"/>`,
			d.at(s.from), rowB, d.at(s.to)-d.at(s.from), barHeight)
		d.label((d.at(max(s.from, a))+d.at(s.to))/2, rowB+18, "onbar", "middle",
			fmt.Sprintf("blocked by the endpoint for %s", clock(d.plan.Told(s.to-s.from))))
	}
	for _, m := range t.Moments() {
		if m.Kind == story.Recorded && m.Object == story.NameB && m.Reason == story.ReasonNotReady {
			d.put(`<rect class="look" x="%.1f" y="%.1f" width="2.5" height="%d"/>`, d.at(m.At), rowB, barHeight)
		}
	}
	d.put(`<line class="rule" x1="%.1f" y1="%.1f" x2="%.1[1]f" y2="%.1[3]f"/>`, d.at(a), rowA+barHeight, rowB+barHeight)
	d.ready(a, rowA, "A ready")
	d.ready(b, rowB, "B ready")
}

// outage draws when the endpoint could not be reached, and where it said 429.
func (d *drawing) outage(t telling, y float64) {
	d.put(`<rect class="line" x="%d" y="%.1f" width="%d" height="2"/>`, chartLeft, y+5, chartRight-chartLeft)
	var down time.Duration
	var told []float64 // where it said 429
	for _, m := range t.Moments() {
		switch m.Kind {
		case story.Down:
			down = m.At
		case story.Up:
			d.bar("away", down, m.At, y, 12)
		case story.Answered:
			if m.Status == http.StatusTooManyRequests {
				told = append(told, d.at(m.At))
			}
		}
	}
	for i, x := range told {
		d.put(`<path class="told" d="M%.1f %.1f l6 7 l-6 7 l-6 -7 Z"/>`, x, y-1)
		if i == len(told)-1 {
			d.label(x-6, y+26, "small told", "start", answer(d.plan, http.StatusTooManyRequests))
		}
	}
}

// ready draws the mark of an object that has become ready.
func (d *drawing) ready(at time.Duration, y float64, label string) {
	x, y := d.at(at), y+barHeight/2
	d.mark(x, y)
	d.label(x+16, y+5, "", "start", label+" "+clock(d.plan.Told(at)))
}

func (d *drawing) mark(x, y float64) {
	d.put(`<circle class="ready" cx="%.1f" cy="%.1f" r="10"/>`, x, y)
	d.put(`<path class="tick" d="M%.1f %.1f l3.2 3.4 l5.6 -6.6"/>`, x-4.4, y+.2)
}

func (d *drawing) legend(y int) {
	x, top := margin, float64(y)
	item := func(class string, width, height float64, label string, labelWidth int) {
		d.put(`<rect class="%s" x="%d" y="%.1f" width="%.1f" height="%.1f"/>`, class, x, top+7-height/2, width, height)
		d.text(x+int(width)+8, y+12, "small", label)
		x += int(width) + 8 + labelWidth
	}
	item("wait", 24, 14, "not ready yet", 108)
	item("look", 2.5, 14, "B checks A, records an event", 200)
	stripes := x
	item("blocked", 24, 14, "B's worker blocked", 144)
	d.put(`<rect fill="url(#stripes)" x="%d" y="%.1f" width="24" height="14"/>`, stripes, top)
	item("away", 24, 10, "endpoint unreachable", 158)
	d.mark(float64(x)+8, top+7)
	d.text(x+24, y+12, "small", "ready")
}

// bar draws a time between two moments.
func (d *drawing) bar(class string, from, to time.Duration, y, height float64) {
	d.put(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, class, d.at(from), y, d.at(to)-d.at(from), height)
}

func (d *drawing) text(x, y int, class, text string) {
	d.label(float64(x), float64(y), class, "start", text)
}

func (d *drawing) label(x, y float64, class, anchor, text string) {
	d.put(`<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, class, x, y, anchor, html.EscapeString(text))
}

func (d *drawing) put(format string, args ...any) {
	fmt.Fprintf(d, format+"\n", args...)
}

// at is where a moment is on the time axis, and x where a time of the story is.
func (d *drawing) at(moment time.Duration) float64 { return d.x(d.plan.Told(moment)) }

func (d *drawing) x(told time.Duration) float64 {
	return chartLeft + (chartRight-chartLeft)*told.Seconds()/d.end.Seconds()
}
