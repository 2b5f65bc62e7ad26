package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	quieten()
	// The measurement of an outage starts this binary again.
	if was, err := child(); was {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestQuickRunFillsTheTable(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out, io.Discard, quickly, "", ""); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(out.String()) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		rows++
		if len(cells) != int(columns)+3 {
			t.Errorf("a row has %d cells, want %d: %s", len(cells)-2, columns+1, line)
		} else if cell := strings.TrimSpace(cells[2]); cell == "" || cell == "–" {
			t.Errorf("a row has nothing about this library: %s", line)
		}
	}
	if want := 25; rows < want {
		t.Errorf("the table has %d rows, want %d or more:\n%s", rows, want, out.String())
	}
	for _, part := range []string{
		"github.com/eventrecorder/events", "fluxcd/pkg/runtime v", "go1.", "these numbers mean nothing", "each number is the median of at least",
		"\nGoals:\n", "\nWhat a post has that a bare one has not", "- all of these: ", "\nHow to read it:\n", "\nWhat the others do better:\n",
	} {
		if !strings.Contains(strings.ToLower(out.String()), strings.ToLower(part)) {
			t.Errorf("the report lacks %q", part)
		}
	}
}

func TestTheReportReplacesWhatIsBetweenTheMarks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "README.md")
	if err := os.WriteFile(name, []byte("before\n"+beginMark+"old\n"+endMark+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceReport(name, "new\n"); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, name); got != "before\n"+beginMark+"new\n"+endMark+"after\n" {
		t.Errorf("the file is %q", got)
	}
	if err := os.WriteFile(name, []byte("no marks\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceReport(name, "new\n"); err == nil {
		t.Error("a file without marks is no error")
	}
}

// The README of the library quotes the table, in bold.
func TestTheReadmeQuotesTheTable(t *testing.T) {
	table := readFile(t, "README.md")
	_, section, _ := strings.Cut(readFile(t, "../README.md"), "## Side by side\n")
	section, _, _ = strings.Cut(section, "\n## ")
	quotes := regexp.MustCompile(`\*\*([^*]+)\*\*`).FindAllStringSubmatch(section, -1)
	if len(quotes) < 3 {
		t.Errorf("only %d figures in bold in %q", len(quotes), section)
	}
	for _, quote := range quotes {
		if !strings.Contains(table, quote[1]) {
			t.Errorf("%q is not in the table", quote[1])
		}
	}
}

// The table has the rows that the program writes today, and no quick run's numbers.
func TestTheTableIsCurrent(t *testing.T) {
	table := readFile(t, "README.md")
	if strings.Contains(table, "mean nothing") {
		t.Error("the table is that of a quick run")
	}
	for _, part := range append([]string{"| | " + strings.Join(headings[:], " | ") + " |"}, theirStrengths...) {
		if !strings.Contains(table, part) {
			t.Errorf("make compare has not been run since this changed: %q", part)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestOnlyRunsWhatMatches(t *testing.T) {
	var out, progress bytes.Buffer
	if err := run(&out, &progress, quickly, "^conn", ""); err != nil {
		t.Fatal(err)
	}
	if got := progress.String(); !strings.HasPrefix(got, "connections: ") || strings.Count(got, "\n") != 1 {
		t.Errorf("it ran %q", got)
	}
	if err := run(&out, &progress, quickly, "(", ""); err == nil {
		t.Error("an expression that is none is no error")
	}
}

func TestMissedGoalIsSaid(t *testing.T) {
	var r report
	r.goal(true, "one", "%d", 1)
	if !r.achieved() {
		t.Error("all goals are achieved, and the report says otherwise")
	}
	r.goal(false, "two", "%d", 2)
	if r.achieved() {
		t.Error("a goal is missed, and the report does not say so")
	}
	var out bytes.Buffer
	r.print(&out, full, time.Minute)
	if !strings.Contains(out.String(), "- one: 1, achieved\n- two: 2, **missed**\n") {
		t.Errorf("the goals are\n%s", out.String())
	}
}

func TestNumbersAreReadable(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := count(n); got != want {
			t.Errorf("count(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		930 * time.Nanosecond: "930ns", 1834 * time.Nanosecond: "1.83µs", 40021 * time.Millisecond: "40.02s",
		1321 * time.Microsecond: "1.32ms",
	} {
		if got := duration(d); got != want {
			t.Errorf("duration(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestQuantileIsTheSampleOfItsRank(t *testing.T) {
	for _, test := range []struct {
		q    float64
		want int
	}{{0, 1}, {0.5, 3}, {0.999, 5}, {1, 5}} {
		if got := quantile([]int{5, 3, 1, 4, 2}, test.q); got != test.want {
			t.Errorf("the %v quantile is %d, want %d", test.q, got, test.want)
		}
	}
	if got := spread([]float64{2, 1, 3}); got != 3 {
		t.Errorf("the spread is %v, want 3", got)
	}
}
