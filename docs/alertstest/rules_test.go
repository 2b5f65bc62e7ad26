package alertstest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	rulesFile = "../alerts.yaml"

	// shortFor takes the place of every "for".
	shortFor = "3s"
)

// rule is what a test must know of an alert.
type rule struct {
	name    string
	waits   bool   // has a "for": it is pending before it fires
	counter string // of an alert about something that was counted, else it is about a state
	outcome string // of a loss alert
}

// counts reports whether the rule is about what a metric counts.
func (r rule) counts(metric string, labels map[string]string) bool {
	return r.counter == metric && r.outcome == labels["outcome"]
}

// shorten rewrites the rules so that what takes minutes takes seconds. The
// ranges in expressions stay: 15 minutes keep a loss in sight until the end.
func shorten(rules string) (string, error) {
	replace := func(old, new string) error {
		if n := strings.Count(rules, old); n != 1 {
			return fmt.Errorf("%s has %q %d times, not once: adapt the test to the new threshold", rulesFile, old, n)
		}
		rules = strings.Replace(rules, old, new, 1)
		return nil
	}
	if err := replace("event_recorder_oldest_pending_age_seconds > 1800",
		fmt.Sprint("event_recorder_oldest_pending_age_seconds > ", shortBacklog)); err != nil {
		return "", err
	}
	if err := replace("event_recorder_pending_bytes > 0.8 * 16 * 1024 * 1024",
		fmt.Sprint("event_recorder_pending_bytes > 0.8 * ", smallQueue)); err != nil {
		return "", err
	}
	wait := regexp.MustCompile(`(?m)^( +for:) .*$`)
	if !wait.MatchString(rules) {
		return "", fmt.Errorf("%s has no \"for\"", rulesFile)
	}
	return wait.ReplaceAllString(rules, "$1 "+shortFor), nil
}

// readRules returns the rules as they are in docs/ and as they are tested.
func readRules(t *testing.T) (rules []rule, shortened string) {
	t.Helper()
	content, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	if shortened, err = shorten(string(content)); err != nil {
		t.Fatal(err)
	}
	counter := regexp.MustCompile(`increase\((\w+)(?:\{outcome="(\w+)"\})?\[`)
	for _, text := range strings.Split(shortened, "- alert: ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		r := rule{name: name, waits: strings.Contains(rest, "\n    for: ")}
		if m := counter.FindStringSubmatch(rest); m != nil {
			r.counter, r.outcome = m[1], m[2]
		}
		rules = append(rules, r)
	}
	if len(rules) == 0 {
		t.Fatalf("%s has no alert", rulesFile)
	}
	return rules, shortened
}

func TestEveryAlertHasAProvocation(t *testing.T) {
	rules, _ := readRules(t)
	provoked := map[string]int{}
	for _, p := range provocations {
		for _, alert := range p.alerts {
			provoked[alert]++
			if !slices.ContainsFunc(rules, func(r rule) bool { return r.name == alert }) {
				t.Errorf("%s is provoked by %q, but %s does not have it", alert, p.controller, rulesFile)
			}
		}
	}
	for _, r := range rules {
		if n := provoked[r.name]; n != 1 {
			t.Errorf("%s is provoked %d times, not once", r.name, n)
		}
	}
}

func TestAThresholdThatIsNotFoundIsAnError(t *testing.T) {
	_, rules := readRules(t) // shortened: the thresholds are gone
	if _, err := shorten(rules); err == nil {
		t.Error("no error")
	}
}
