package events_test

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events/eventstest"
)

// lostWords say of each outcome whether the event is lost, where that is not a
// plain yes.
var lostWords = map[string]string{"delivered": "no", "duplicate": "no", "coalesced": "no", "saved": "no", "unconfirmed": "perhaps"}

// entry is the part of operations.md about one alert.
type entry struct{ alert, text string }

// entries are the sections of operations.md whose heading is the name of an alert.
func entries(t *testing.T) (found []entry) {
	t.Helper()
	for _, section := range strings.Split(readFile(t, operationsFile), "\n### ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n## ") // the next chapter
		if strings.HasPrefix(name, "EventRecorder") {
			found = append(found, entry{name, text})
		}
	}
	return found
}

// blocks are the blocks of code of a language.
func (e entry) blocks(language string) (found []string) {
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(e.text, -1) {
		found = append(found, strings.TrimSpace(m[1]))
	}
	return found
}

func TestOperationsHasAnEntryWithACommandAndAQueryForEachAlert(t *testing.T) {
	labels, outcomes := exposed(afterAnEvent(t))
	rules := map[string]rule{}
	for _, r := range readRules(t) {
		rules[r.alert] = r
	}
	messages := logged(t)
	for _, e := range entries(t) {
		if _, ok := rules[e.alert]; !ok {
			t.Errorf("%s has the entry %s, which is no alert or has another entry", operationsFile, e.alert)
		}
		delete(rules, e.alert)
		if len(e.blocks("sh")) == 0 || len(e.blocks("promql")) == 0 {
			t.Errorf("%s has %d blocks of commands and %d queries", e.alert, len(e.blocks("sh")), len(e.blocks("promql")))
		}
		for _, query := range e.blocks("promql") {
			if _, groups := checkQuery(t, e.alert, query, labels, outcomes); !slices.Contains(groups, "controller") {
				t.Errorf("%s: the query is not by controller: %s", e.alert, query)
			}
		}
		// On call, one reads the meaning first, and in the end what to decide.
		inOrder := regexp.MustCompile("(?s)^\n\\*\\*Meaning:\\*\\* .*\n```sh\n.*\n```promql\n.*\n\\*\\*Decide:\\*\\*")
		if !inOrder.MatchString(e.text) {
			t.Errorf("%s: not in the order meaning, command, query, decision", e.alert)
		}
		for _, command := range e.blocks("sh") {
			for _, m := range regexp.MustCompile(`grep '([^']*)'`).FindAllStringSubmatch(command, -1) {
				found := outcomes[m[1]]
				for message := range messages {
					found = found || strings.Contains(message, m[1])
				}
				if !found {
					t.Errorf("%s: no line of the log has %q", e.alert, m[1])
				}
			}
		}
	}
	for alert := range rules {
		t.Errorf("%s has no entry for %s", operationsFile, alert)
	}
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
		if want := lostWords[name]; row[1] != cmp.Or(want, "yes") {
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
	for _, row := range table(t, "Event", "Bytes") {
		got := bytesOfAnEvent(t, row[0])
		stated, err := strconv.Atoi(strings.ReplaceAll(row[1], ",", ""))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes, %d stated", row[0], got, stated)
		if ratio := float64(got) / float64(stated); strconv.IntSize == 64 && (ratio < 0.9 || ratio > 1.05) {
			t.Errorf("%s: %d bytes, %d stated", row[0], got, stated)
		}
		if stated < 3000 && (got > size || got < size/2) && strconv.IntSize == 64 {
			t.Errorf("%s: %d bytes, the table of outages counts with %d", row[0], got, size)
		}
	}

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

// bytesOfAnEvent is what the recorder charges for an event that operations.md
// describes: the length of its message, its annotations, and how many there are
// about each object.
func bytesOfAnEvent(t *testing.T, description string) (bytes int) {
	t.Helper()
	m := regexp.MustCompile(`^([\d,]+) characters, (\d) annotations?, (\d+) events? about each object$`).FindStringSubmatch(description)
	if m == nil {
		t.Fatalf("%s: not the description of an event: %q", operationsFile, description)
	}
	length, _ := strconv.Atoi(strings.ReplaceAll(m[1], ",", ""))
	annotations, _ := strconv.Atoi(m[2])
	each, _ := strconv.Atoi(m[3])
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr))
		h.log.quiet = true
		for i := range 1000 {
			said := map[string]string{}
			for _, key := range []string{"kustomize.toolkit.fluxcd.io/revision", "event.toolkit.fluxcd.io/summary"}[:annotations] {
				said[key] = "main@sha1:3b2a1c9f8e7d6c5b4a3f2e1d0c9b8a7f6e5d4c3b"
			}
			h.AnnotatedEventf(pod(fmt.Sprint("podinfo-7d9c5b8f6-", i/each)), said, corev1.EventTypeNormal, "ReconciliationSucceeded", "%0*d", length, i)
		}
		bytes = int(h.value("event_recorder_pending_bytes") / h.value("event_recorder_pending_events"))
		h.shutdownNow()
	})
	return bytes
}

// What operations.md shows as Go is compiled, with the example for the README.
func TestOperationsGoCodeIsThatOfTheExamples(t *testing.T) {
	compiled := strings.Join(strings.Fields(readFile(t, "example_test.go")), " ")
	blocks := entry{text: readFile(t, operationsFile)}.blocks("go")
	if len(blocks) == 0 {
		t.Error("there is none")
	}
	for _, block := range blocks {
		if !strings.Contains(compiled, strings.Join(strings.Fields(block), " ")) {
			t.Errorf("not in example_test.go:\n%s", block)
		}
	}
}
