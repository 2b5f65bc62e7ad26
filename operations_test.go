package events_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// What docs/ shows to operators, held against the recorder: the alerts, the
// dashboard and the tables of operations.md. docs/check.sh runs these tests.

const (
	alertsFile     = "docs/alerts.yaml"
	dashboardFile  = "docs/dashboard.json"
	operationsFile = "docs/operations.md"

	quietName = "quiet-controller"
)

// The plot of the story, in minutes. The counts of the alerts below follow from it.
const (
	blipBegins, blipEnds     = 5, 8
	outageBegins             = 20
	secondQuietObject        = 35
	outageEnds               = 90
	refusals, poison, noName = 120, 140, 160
	stops                    = 180
	theEnd                   = 200

	// One object fills the default queue of 16 MiB to 80 % in 31.5 minutes.
	noisyEvents = 14
	noisyBytes  = 28_350
)

// tellStory runs a recorder through an outage that overflows its queue, a
// recovery and every kind of loss, and returns what its registry exposed at each
// minute. A second controller has no trouble all the time.
func tellStory(t *testing.T) (samples [][]*dto.MetricFamily) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		slow := eventstest.Delay(20 * time.Millisecond)
		tr.Behave(slow)
		h := newHarness(t, tr.URL(), on(tr))
		other := eventstest.NewTransport()
		defer other.Close()
		quietRegistry := prometheus.NewRegistry()
		quiet := recorderFor(t, other, quietName, events.WithMetricsRegisterer(quietRegistry))
		long := strings.Repeat("x", noisyBytes)

		for minute := 0; minute <= theEnd; minute++ {
			families, err := prometheus.Gatherers{h.registry, quietRegistry}.Gather()
			if err != nil {
				t.Fatal(err)
			}
			samples = append(samples, families)
			h.outcomes() // fails the test if the sum does not hold

			inOutage := minute >= outageBegins && minute < outageEnds
			switch minute {
			case blipBegins, outageBegins:
				tr.Down()
			case blipEnds, outageEnds:
				if err := tr.Up(); err != nil {
					t.Fatal(err)
				}
			case refusals:
				tr.Behave(eventstest.Status(403))
			case poison:
				tr.Behave(eventstest.Status(500))
			case refusals + 1, poison + 1:
				tr.Behave(slow)
			case noName:
				h.Event(nil, "Normal", "Testing", "about nothing")
			case stops - 1:
				tr.Down()
			case stops:
				h.shutdownNow()
			}
			quiet.Eventf(pod("q"), "Normal", "Testing", "event %d", minute)
			if !inOutage && minute <= stops { // the last one is too late
				h.say("a", fmt.Sprint("event ", minute))
			}
			if minute == outageBegins || minute == secondQuietObject {
				h.say(fmt.Sprint("quiet-", minute), "one event only")
			}
			if inOutage {
				h.say("same", "says the same again and again") // coalesced
				for i := range noisyEvents {
					h.say("noisy", fmt.Sprintf("%s %d-%d", long, minute, i))
				}
			}
			time.Sleep(time.Minute)
		}
		got := h.outcomes()
		for _, o := range outcomeNames {
			if got[o] == 0 && o != "duplicate" {
				t.Errorf("the story has no event that is %s: %v", o, got)
			}
		}
	})
	return samples
}

// expectation is an alert and when it fires, first and last minute included.
// Whether increase() takes a sample that is exactly as old as its range depends
// on the version of Prometheus, so unsure is a minute of which nothing is said.
type expectation struct {
	alert, severity, outcome string
	from, to, unsure         int
}

var expectations = []expectation{
	// 0 at the scrape after the outage began, and five minutes more.
	{"EventRecorderEndpointUnreachable", "warning", "", outageBegins + 1 + 5, outageEnds, -1},
	// More than 30 minutes at the 31st scrape.
	{"EventRecorderBacklogOld", "warning", "", outageBegins + 31 + 5, outageEnds, -1},
	{"EventRecorderQueueNearlyFull", "warning", "", outageBegins + 32 + 5, outageEnds, -1},
	// The queue is full after 39.4 minutes, and the last event that does not
	// fit is recorded a minute before the endpoint is back.
	lossAlert("Overflow", "warning", outageBegins+40, outageEnds),
	// The events that began the outage are an hour old.
	lossAlert("Expired", "warning", outageBegins+61, outageBegins+61),
	lossAlert("Rejected", "warning", refusals+1, refusals+1),
	lossAlert("Exhausted", "warning", poison+1, poison+1),
	lossAlert("Invalid", "warning", noName+1, noName+1),
	lossAlert("Shutdown", "info", stops+1, stops+1),
}

// lossAlert fires from the first scrape that shows a loss until 15 minutes after
// the last that does.
func lossAlert(outcome, severity string, first, last int) expectation {
	return expectation{"EventRecorderLoss" + outcome, severity, strings.ToLower(outcome), first, last + 13, last + 14}
}

// rule is an alert as docs/alerts.yaml has it.
type rule struct{ alert, expr, wait, severity, summary, description, runbook string }

// readRules reads the part of YAML that docs/alerts.yaml uses: one line a value.
// promtool reads all of it.
func readRules(t *testing.T) []rule {
	t.Helper()
	var rules []rule
	for i, line := range strings.Split(readFile(t, alertsFile), "\n") {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), ": ")
		if name == "alert" {
			rules = append(rules, rule{alert: value})
			continue
		}
		if len(rules) == 0 {
			continue
		}
		r := &rules[len(rules)-1]
		fields := map[string]*string{"expr": &r.expr, "for": &r.wait, "severity": &r.severity,
			"summary": &r.summary, "description": &r.description, "runbook_url": &r.runbook}
		field := fields[name]
		if field == nil {
			continue
		}
		if *field = value; name != "expr" && name != "for" && name != "severity" {
			var err error
			if *field, err = strconv.Unquote(value); err != nil {
				t.Errorf("%s:%d: %v", alertsFile, i+1, err)
			}
		}
	}
	for _, r := range rules {
		if r.expr == "" || r.severity == "" || r.summary == "" || r.description == "" || r.runbook == "" {
			t.Errorf("%s: %s is incomplete: %+v", alertsFile, r.alert, r)
		}
	}
	return rules
}

func TestOperationsAlertsFireWhenTheyShouldAndNotElse(t *testing.T) {
	rules := map[string]rule{}
	for _, r := range readRules(t) {
		rules[r.alert] = r
	}
	for _, e := range expectations {
		if _, ok := rules[e.alert]; !ok {
			t.Errorf("%s has no %s", alertsFile, e.alert)
		}
	}
	if len(rules) != len(expectations) {
		t.Errorf("%s has %d alerts, %d are tested", alertsFile, len(rules), len(expectations))
	}
	for _, o := range outcomeNames {
		loss := o != "delivered" && o != "duplicate" && o != "coalesced"
		if alerted := slices.ContainsFunc(expectations, func(e expectation) bool { return e.outcome == o }); alerted != loss {
			t.Errorf("%s: a loss: %v, has an alert: %v", o, loss, alerted)
		}
	}
	samples := tellStory(t)
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("EVENTS_REQUIRE_PROMTOOL") != "" {
			t.Fatal(err)
		}
		t.Skip("no promtool; docs/check.sh requires it")
	}

	file, err := filepath.Abs(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "rule_files: [%q]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n", file)
	writeSeries(&out, samples)
	out.WriteString("  alert_rule_test:\n")
	for minute := range samples {
		for _, e := range expectations {
			if minute != e.unsure {
				writeExpectation(&out, e, rules[e.alert], minute, samples[minute])
			}
		}
	}
	writeDashboardQueries(t, &out, poison+2)

	unit := filepath.Join(t.TempDir(), "alerts_test.yaml")
	if err := os.WriteFile(unit, []byte(out.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", file}, {"test", "rules", unit}} {
		output, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		if err != nil {
			const most = 4000
			t.Errorf("promtool %s: %v\n%.*s", strings.Join(args[:2], " "), err, most, output)
		}
	}
}

// writeSeries writes what was gathered as Prometheus would have scraped it, with
// the labels that it adds.
func writeSeries(out *strings.Builder, samples [][]*dto.MetricFamily) {
	series := map[string][]string{}
	for minute, families := range samples {
		for _, f := range families {
			for _, m := range f.GetMetric() {
				labels := []string{`instance="10.0.0.7:8080"`, `job="controllers"`}
				for _, l := range m.GetLabel() {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
				add := func(suffix string, value float64, more ...string) {
					name := f.GetName() + suffix + "{" + strings.Join(append(labels, more...), ",") + "}"
					for len(series[name]) < minute {
						series[name] = append(series[name], "_")
					}
					series[name] = append(series[name], strconv.FormatFloat(value, 'f', -1, 64))
				}
				switch {
				case m.GetCounter() != nil:
					add("", m.GetCounter().GetValue())
				case m.GetGauge() != nil:
					add("", m.GetGauge().GetValue())
				case m.GetHistogram() != nil:
					for _, b := range m.GetHistogram().GetBucket() {
						add("_bucket", float64(b.GetCumulativeCount()), fmt.Sprintf(`le="%v"`, b.GetUpperBound()))
					}
					add("_bucket", float64(m.GetHistogram().GetSampleCount()), `le="+Inf"`)
					add("_sum", m.GetHistogram().GetSampleSum())
					add("_count", float64(m.GetHistogram().GetSampleCount()))
				}
			}
		}
	}
	for name, values := range series {
		fmt.Fprintf(out, "  - series: '%s'\n    values: '%s'\n", name, strings.Join(values, " "))
	}
}

// writeExpectation says whether an alert fires at a minute, and with which
// labels and annotations. There is never one for the other controller.
func writeExpectation(out *strings.Builder, e expectation, r rule, minute int, sample []*dto.MetricFamily) {
	fmt.Fprintf(out, "  - eval_time: %dm\n    alertname: %s\n", minute, e.alert)
	if minute < e.from || minute > e.to {
		return
	}
	outcome := ""
	if e.outcome != "" {
		outcome = ", outcome: " + e.outcome
	}
	age := time.Duration(gauge(sample, "event_recorder_oldest_pending_age_seconds")) * time.Second
	rendered := strings.NewReplacer(
		"{{ $labels.controller }}", controllerName,
		"{{ $value | humanizeDuration }}", strings.NewReplacer("h", "h ", "m", "m ").Replace(age.String()),
		"{{ $value | humanize1024 }}", fmt.Sprintf("%.4gMi", gauge(sample, "event_recorder_pending_bytes")/(1<<20)),
	)
	fmt.Fprintf(out, `    exp_alerts:
    - exp_labels: {severity: %s, controller: %s%s, job: controllers, instance: "10.0.0.7:8080"}
      exp_annotations:
        summary: %q
        description: %q
        runbook_url: %q
`, e.severity, controllerName, outcome, rendered.Replace(r.summary), rendered.Replace(r.description), r.runbook)
}

func gauge(sample []*dto.MetricFamily, name string) float64 {
	for _, f := range sample {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && hasLabels(m, []string{"controller", controllerName}) {
				return m.GetGauge().GetValue()
			}
		}
	}
	return math.NaN()
}

// writeDashboardQueries asks of each query of the dashboard that it can be
// parsed and finds something.
func writeDashboardQueries(t *testing.T, out *strings.Builder, minute int) {
	out.WriteString("  promql_expr_test:\n")
	filled := strings.NewReplacer("$__rate_interval", "5m", "$controller", controllerName)
	for _, q := range dashboardQueries(t) {
		fmt.Fprintf(out, "  - expr: %q\n    eval_time: %dm\n    exp_samples: [{labels: '{}', value: 1}]\n",
			"count("+filled.Replace(q)+") > bool 0", minute)
	}
}

// panel is as much of a Grafana panel as the tests look at.
type panel struct {
	ID      int
	Type    string
	Title   string
	Repeat  string
	GridPos struct{ X, Y, W, H int }
	Targets []struct{ Expr, LegendFormat string }
}

func dashboard(t *testing.T) (panels []panel, controllers string) {
	t.Helper()
	var d struct {
		Panels     []panel
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	for _, v := range d.Templating.List {
		if v.Name == "controller" {
			controllers = v.Definition
		}
	}
	return d.Panels, controllers
}

func dashboardQueries(t *testing.T) []string {
	t.Helper()
	var queries []string
	panels, _ := dashboard(t)
	for _, p := range panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	return queries
}

// exposed are the series names of the registry, each with its labels, and the
// values of the label outcome.
func exposed(families []*dto.MetricFamily) (labels map[string][]string, outcomes map[string]bool) {
	labels, outcomes = map[string][]string{}, map[string]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var names []string
			for _, l := range m.GetLabel() {
				names = append(names, l.GetName())
				if l.GetName() == "outcome" {
					outcomes[l.GetValue()] = true
				}
			}
			if m.GetHistogram() == nil {
				labels[f.GetName()] = names
				continue
			}
			labels[f.GetName()+"_sum"], labels[f.GetName()+"_count"] = names, names
			labels[f.GetName()+"_bucket"] = append(slices.Clone(names), "le")
		}
	}
	return labels, outcomes
}

// afterAnEvent is what a registry exposes once there was an attempt.
func afterAnEvent(t *testing.T) (families []*dto.MetricFamily) {
	t.Helper()
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "m")
		h.settled()
		var err error
		if families, err = h.registry.Gather(); err != nil {
			t.Fatal(err)
		}
	})
	return families
}

var (
	selector  = regexp.MustCompile(`(event_recorder_\w+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping  = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
	legendRef = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
)

// checkQuery fails the test unless the recorder exposes every metric, label and
// outcome that a query names. It returns the metrics and the labels it groups by.
func checkQuery(t *testing.T, where, query string, labels map[string][]string, outcomes map[string]bool) (metrics, groups []string) {
	t.Helper()
	for _, s := range selector.FindAllStringSubmatch(query, -1) {
		metrics = append(metrics, s[1])
		if labels[s[1]] == nil {
			t.Errorf("%s: the recorder has no metric %s", where, s[1])
		}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(labels[s[1]], m[1]) {
				t.Errorf("%s: %s has no label %s", where, s[1], m[1])
			}
			if m[1] == "outcome" {
				for _, o := range strings.Split(m[3], "|") {
					if !outcomes[o] {
						t.Errorf("%s: there is no outcome %s", where, o)
					}
				}
			}
		}
	}
	if len(metrics) == 0 {
		t.Errorf("%s: no metric of the recorder in %q", where, query)
	}
	for _, g := range grouping.FindAllStringSubmatch(query, -1) {
		for _, label := range strings.Split(g[1], ",") {
			label = strings.TrimSpace(label)
			groups = append(groups, label)
			if !slices.ContainsFunc(metrics, func(m string) bool { return slices.Contains(labels[m], label) }) {
				t.Errorf("%s: no metric in %q has the label %s", where, query, label)
			}
		}
	}
	return metrics, groups
}

func TestOperationsDashboardAsksForWhatTheRecorderExposes(t *testing.T) {
	families := afterAnEvent(t)
	labels, outcomes := exposed(families)
	panels, controllers := dashboard(t)
	shown := ""
	ids := map[int]bool{}
	for i, p := range panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, q := range panels[:i] {
			a, b := p.GridPos, q.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("the panels %q and %q overlap", p.Title, q.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 {
			t.Errorf("the panel %q asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			metrics, groups := checkQuery(t, p.Title, target.Expr, labels, outcomes)
			shown += strings.Join(metrics, " ") + " "
			// A variable of many values is put in as a regular expression.
			if strings.Count(target.Expr, `controller=~"$controller"`) != len(metrics) {
				t.Errorf("%q is not about the row's controller only: %s", p.Title, target.Expr)
			}
			for _, ref := range legendRef.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(groups, ref[1]) {
					t.Errorf("the legend of %q shows %s, which %s does not have", p.Title, ref[1], target.Expr)
				}
			}
		}
	}
	for _, f := range families {
		if !strings.Contains(shown, f.GetName()) {
			t.Errorf("no panel shows %s", f.GetName())
		}
	}
	if panels[0].Type != "row" || panels[0].Repeat != "controller" {
		t.Errorf("the first panel is not a row for each controller: %+v", panels[0])
	}
	if m := regexp.MustCompile(`^label_values\((\w+), controller\)$`).FindStringSubmatch(controllers); m == nil || labels[m[1]] == nil {
		t.Errorf("the variable controller is %q", controllers)
	}
}

func TestOperationsAlertsAskForWhatTheRecorderExposes(t *testing.T) {
	labels, outcomes := exposed(afterAnEvent(t))
	anchors := anchors(t)
	for _, r := range readRules(t) {
		checkQuery(t, r.alert, r.expr, labels, outcomes)
		file, section, _ := strings.Cut(r.runbook, "#")
		if file != filepath.Base(operationsFile) || !anchors[section] {
			t.Errorf("%s: %s leads nowhere", r.alert, r.runbook)
		}
		// The log lines that it names.
		for _, m := range regexp.MustCompile(`log line '([^']*)'`).FindAllStringSubmatch(r.description, -1) {
			if !knownMessages[m[1]] {
				t.Errorf("%s: there is no log line %q", r.alert, m[1])
			}
		}
	}
}

// anchors are those of the headings of operations.md, as GitHub makes them.
func anchors(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(readFile(t, operationsFile), -1) {
		plain := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found[strings.ReplaceAll(plain, " ", "-")] = true
	}
	return found
}

// table returns the rows of the table of operations.md whose header begins with
// these cells, without the header.
func table(t *testing.T, header ...string) (rows [][]string) {
	t.Helper()
	in := false
	for _, line := range strings.Split(readFile(t, operationsFile), "\n") {
		if !strings.HasPrefix(line, "|") {
			in = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if in && !strings.HasPrefix(line, "|--") {
			rows = append(rows, cells)
		}
		in = in || len(cells) >= len(header) && slices.Equal(cells[:len(header)], header)
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no table %v", operationsFile, header)
	}
	return rows
}

// code returns the texts in backquotes.
func code(s string) (words []string) {
	for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(s, -1) {
		words = append(words, m[1])
	}
	return words
}

func TestOperationsTablesNameEveryMetricAndOutcome(t *testing.T) {
	families := afterAnEvent(t)
	labels, outcomes := exposed(families)
	want := map[string]string{} // metric: its labels but controller
	for _, f := range families {
		name := f.GetName()
		if f.GetType() == dto.MetricType_HISTOGRAM {
			name += "_bucket"
		}
		others := slices.DeleteFunc(slices.Clone(labels[name]), func(l string) bool { return l == "controller" })
		want[f.GetName()] = strings.ToLower(f.GetType().String()) + strings.Join(others, " ")
	}
	for _, row := range table(t, "Metric", "Other labels", "Type", "Unit") {
		name := code(row[0])[0]
		if got := row[2] + strings.Join(code(row[1]), " "); got != want[name] {
			t.Errorf("%s is %q in the table, %q in the registry", name, got, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not in the table: %v", want)
	}
	for _, row := range table(t, "Outcome", "Lost?") {
		name := code(row[0])[0]
		if !outcomes[name] {
			t.Errorf("there is no outcome %s", name)
		}
		delete(outcomes, name)
		loss := slices.ContainsFunc(expectations, func(e expectation) bool { return e.outcome == name })
		if (row[1] == "yes") != loss {
			t.Errorf("%s: lost: %s", name, row[1])
		}
	}
	if len(outcomes) > 0 {
		t.Errorf("not in the table: %v", outcomes)
	}

	text := readFile(t, operationsFile)
	for _, s := range selector.FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == s[1] }) && labels[s[1]] == nil {
			t.Errorf("%s names %s, which does not exist", operationsFile, s[1])
		}
	}
	for _, option := range regexp.MustCompile(`\bWith[A-Z]\w+`).FindAllString(text, -1) {
		if !strings.Contains(readFile(t, "options.go")+readFile(t, "recorder.go"), option+"(") {
			t.Errorf("%s names %s, which does not exist", operationsFile, option)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(text, -1) {
		if !anchors(t)[m[1]] {
			t.Errorf("%s has no section %s", operationsFile, m[1])
		}
	}
}

// The table of outages and rates is what its stated size of an event gives, and
// no typical event is larger than that.
func TestOperationsSizingIsThatOfTheRecorder(t *testing.T) {
	m := regexp.MustCompile(`With ([\d,]+) bytes for an event`).FindStringSubmatch(readFile(t, operationsFile))
	if m == nil {
		t.Fatalf("%s does not state the size of an event", operationsFile)
	}
	size, err := strconv.Atoi(strings.ReplaceAll(m[1], ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		for _, each := range []int{1, 10} {
			h := newHarness(t, tr.URL(), on(tr))
			h.log.quiet = true
			for i := range 1000 {
				h.AnnotatedEventf(pod(fmt.Sprint("podinfo-7d9c5b8f6-", i/each)), map[string]string{"example.com/revision": "main@sha1:3b2a1c"},
					corev1.EventTypeNormal, "ReconciliationSucceeded", "%0*d", 80, i)
			}
			got := int(h.value("event_recorder_pending_bytes") / h.value("event_recorder_pending_events"))
			t.Logf("%d events about each object: %d bytes an event, %d stated", each, got, size)
			if got > size || got < size/2 {
				t.Errorf("%d events about each object: %d bytes an event, %d stated", each, got, size)
			}
			h.shutdownNow()
		}
	})

	text := readFile(t, operationsFile)
	header := strings.Split(regexp.MustCompile(`(?m)^\| Outage \|.*\|$`).FindString(text), "|")
	number := regexp.MustCompile(`^ *([\d.]+) (\w+)`)
	for _, row := range table(t, "Outage") {
		length := number.FindStringSubmatch(row[0])
		minutes, _ := strconv.ParseFloat(length[1], 64)
		if length[2] == "h" {
			minutes *= 60
		}
		for i, cell := range row[1:] {
			rate, _ := strconv.ParseFloat(number.FindStringSubmatch(header[i+2])[1], 64)
			want := math.Ceil(minutes * 60 * rate * float64(size) / (1 << 20))
			if cell != fmt.Sprint(want) {
				t.Errorf("%s at %v events/s is %s MiB in the table, want %v", row[0], rate, cell, want)
			}
		}
	}
}

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
	known := knownMessages
	levels, keys := map[string]string{}, map[string][]string{}
	for _, row := range table(t, "Message", "Level", "Keys") {
		message := code(row[0])[0]
		levels[message], keys[message] = row[1], code(row[2])
		slices.Sort(keys[message])
	}
	sources := logged(t)
	for _, lists := range []map[string]bool{known, sources} {
		for message := range lists {
			if keys[message] == nil {
				t.Errorf("not in the table: %q", message)
			}
		}
	}
	for message := range keys {
		if !known[message] || !sources[message] {
			t.Errorf("%q is in the table, but the recorder does not log it (%v) or the tests do not know it (%v)", message, sources[message], known[message])
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
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithEventsV1Recorder(&v1Recorder{}))
		h.say("a", "m")
		h.settled()
		h.say("a", "m") // a duplicate
		h.settled()
		h.Event(nil, "Normal", "Testing", "about nothing")
		h.EventsV1().Eventf(pod("a"), &unregisteredObject{}, "Normal", "Testing", "Test", "related to nothing")
		h.say("a", strings.Repeat("long ", 1000)) // mended
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
		lines = h.log.matching(func(logLine) bool { return true })
	})
	return lines
}
