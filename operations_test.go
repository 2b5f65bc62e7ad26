package events_test

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/eventrecorder/events/eventstest"
)

// What docs/ shows to operators, held against the recorder. docs/check.sh runs
// these tests: here, what alerts and dashboard ask for; operations_story_test.go,
// when the alerts fire; operations_page_test.go and operations_log_test.go, what
// operations.md says.

const (
	alertsFile     = "docs/alerts.yaml"
	dashboardFile  = "docs/dashboard.json"
	operationsFile = "docs/operations.md"
)

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
	messages := logged(t)
	for _, r := range readRules(t) {
		checkQuery(t, r.alert, r.expr, labels, outcomes)
		if r.runbook != filepath.Base(operationsFile)+"#"+anchorOf(r.alert) {
			t.Errorf("%s: %s is not its entry", r.alert, r.runbook)
		}
		// The log lines that it names.
		for _, m := range regexp.MustCompile(`log line '([^']*)'`).FindAllStringSubmatch(r.description, -1) {
			if !messages[m[1]] {
				t.Errorf("%s: there is no log line %q", r.alert, m[1])
			}
		}
	}
}
