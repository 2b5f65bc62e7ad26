package events_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

const (
	quietName     = "quiet-controller"
	journaledName = "journaled-controller"
)

// The plot of the story, in minutes. The counts of the alerts below follow from it.
const (
	blipBegins, blipEnds     = 5, 8
	outageBegins             = 20
	secondQuietObject        = 35
	outageEnds               = 90
	lostAnswer               = 110
	refusals, poison, noName = 120, 140, 160
	journalGone              = 150
	stops                    = 180
	theEnd                   = 200

	// One object fills the default queue of 16 MiB to 80 % in 31.5 minutes.
	noisyEvents = 14
	noisyBytes  = 28_350
)

// tellStory runs a recorder through an outage that overflows its queue, a
// recovery and every kind of loss, and returns what its registry exposed at each
// minute. A second controller has no trouble all the time, and a third has a
// journal, whose directory is removed once.
func tellStory(t *testing.T) (samples [][]*dto.MetricFamily) {
	dir := filepath.Join(t.TempDir(), "journal")
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		slow := eventstest.Delay(20 * time.Millisecond)
		tr.Behave(slow)
		// With short waits nine strikes take less than a minute.
		h := newHarness(t, tr.URL(), on(tr), events.WithRetryWait(time.Second, 4*time.Second))
		other := eventstest.NewTransport()
		defer other.Close()
		quietRegistry := prometheus.NewRegistry()
		quiet := recorderFor(t, other, quietName, events.WithMetricsRegisterer(quietRegistry))
		third := eventstest.NewTransport()
		defer third.Close()
		journaledRegistry := prometheus.NewRegistry()
		journaled := recorderFor(t, third, journaledName, events.WithMetricsRegisterer(journaledRegistry), events.WithJournal(dir))
		long := strings.Repeat("x", noisyBytes)

		for minute := 0; minute <= theEnd; minute++ {
			families, err := prometheus.Gatherers{h.registry, quietRegistry, journaledRegistry}.Gather()
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
			case lostAnswer:
				tr.BehaveNext(eventstest.Reset(), eventstest.Status(429))
			case refusals:
				tr.Behave(eventstest.Status(403))
			case poison:
				tr.Behave(failsAtPoison)
				h.say("bad", "poison")
			case refusals + 1, poison + 1:
				tr.Behave(slow)
			case journalGone - 1:
				third.Down()
			case journalGone:
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			case journalGone + 2:
				_ = third.Up()
			case noName:
				h.Event(nil, "Normal", "Testing", "about nothing")
			case stops - 1:
				tr.Down()
				third.Down()
			case stops:
				h.shutdownNow()
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := journaled.Shutdown(ctx); err == nil {
					t.Error("nothing was left when the drain ended")
				}
			}
			if minute < stops {
				journaled.Eventf(pod("j"), "Normal", "Testing", "event %d", minute)
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
			for second := range 60 {
				if minute == poison {
					h.say("b", fmt.Sprint("wholesome ", second))
				}
				time.Sleep(time.Second)
			}
		}
		got := h.outcomes()
		got["saved"] = int(metricValue(t, journaledRegistry, "event_recorder_events_total", "outcome", "saved"))
		for _, o := range outcomeNames {
			if got[o] == 0 && o != "duplicate" {
				t.Errorf("the story has no event that is %s: %v", o, got)
			}
		}
	})
	return samples
}

// failsAtPoison accepts every event but those that say so.
func failsAtPoison(w http.ResponseWriter, r *http.Request, normal http.Handler) {
	if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "poison") {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// expectation is an alert and when it fires, first and last minute included.
// Whether increase() takes a sample that is exactly as old as its range depends
// on the version of Prometheus, so unsure is a minute of which nothing is said.
type expectation struct {
	alert, severity, controller, outcome string
	from, to, unsure                     int
}

var expectations = []expectation{
	// 0 at the scrape after the outage began, and five minutes more.
	{"EventRecorderEndpointUnreachable", "warning", controllerName, "", outageBegins + 1 + 5, outageEnds, -1},
	// More than 30 minutes at the 31st scrape.
	{"EventRecorderBacklogOld", "warning", controllerName, "", outageBegins + 31 + 5, outageEnds, -1},
	{"EventRecorderQueueNearlyFull", "warning", controllerName, "", outageBegins + 32 + 5, outageEnds, -1},
	// The queue is full after 39.4 minutes, and the last event that does not
	// fit is recorded a minute before the endpoint is back.
	lossAlert("Overflow", "warning", outageBegins+40, outageEnds),
	// The events that began the outage are an hour old.
	lossAlert("Expired", "warning", outageBegins+61, outageBegins+61),
	lossAlert("Unconfirmed", "info", lostAnswer+1, lostAnswer+1),
	lossAlert("Rejected", "warning", refusals+1, refusals+1),
	lossAlert("Exhausted", "warning", poison+1, poison+1),
	lossAlert("Invalid", "warning", noName+1, noName+1),
	lossAlert("Shutdown", "info", stops+1, stops+1),
	{"EventRecorderJournalFails", "warning", journaledName, "", journalGone + 1, journalGone + 14, journalGone + 15},
}

// lossAlert fires from the first scrape that shows a loss until 15 minutes after
// the last that does.
func lossAlert(outcome, severity string, first, last int) expectation {
	return expectation{"EventRecorderLoss" + outcome, severity, controllerName, strings.ToLower(outcome), first, last + 13, last + 14}
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
		loss := lostWords[o] != "no"
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
	out.WriteString("  promql_expr_test:\n")
	filled := strings.NewReplacer("$__rate_interval", "5m", "$controller", controllerName)
	for _, query := range dashboardQueries(t) {
		wantResult(&out, filled.Replace(query), poison+2)
	}
	for _, entry := range entries(t) {
		for _, e := range expectations {
			for _, query := range entry.blocks("promql") {
				if e.alert == entry.alert { // it is asked when the alert fires
					wantResult(&out, query, e.from)
				}
			}
		}
	}

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
// labels and annotations. There is never one for another controller.
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
		"{{ $labels.controller }}", e.controller,
		"{{ $value | humanizeDuration }}", strings.NewReplacer("h", "h ", "m", "m ").Replace(age.String()),
		"{{ $value | humanize1024 }}", fmt.Sprintf("%.4gMi", gauge(sample, "event_recorder_pending_bytes")/(1<<20)),
	)
	fmt.Fprintf(out, `    exp_alerts:
    - exp_labels: {severity: %s, controller: %s%s, job: controllers, instance: "10.0.0.7:8080"}
      exp_annotations:
        summary: %q
        description: %q
        runbook_url: %q
`, e.severity, e.controller, outcome, rendered.Replace(r.summary), rendered.Replace(r.description), r.runbook)
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

// wantResult asks of a query that it can be parsed and finds something.
func wantResult(out *strings.Builder, query string, minute int) {
	fmt.Fprintf(out, "  - expr: %q\n    eval_time: %dm\n    exp_samples: [{labels: '{}', value: 1}]\n",
		"count("+query+") > bool 0", minute)
}
