package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const short300 = "-length=300ms"

// quickstart runs the program and returns what it printed.
func quickstart(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(t.Context(), args, strings.NewReader(stdin), &out)
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
	return out.String(), err
}

// inSummary returns the number that stands before the word in the summary.
func inSummary(t *testing.T, out, word string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ *(\d+) ` + word + `\b`).FindStringSubmatch(out)
	if m == nil {
		return 0
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEveryEventOfTheLogIsAccountedFor(t *testing.T) {
	out, err := quickstart(t, "", short300)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	delivered, duplicate, coalesced := inSummary(t, out, "delivered"), inSummary(t, out, "duplicate"), inSummary(t, out, "coalesced")
	if all := delivered + duplicate + coalesced; all != 20 || inSummary(t, out, "in all, of 20 recorded") != 20 {
		t.Errorf("%d events delivered, duplicate or coalesced, want 20:\n%s", all, out)
	}
	// Of 20 events, eleven are not the first with their text.
	if delivered < 7 || delivered > 9 {
		t.Errorf("%d events delivered, want 9, or fewer if the outage took an answer or two:\n%s", delivered, out)
	}
	for _, want := range []string{
		"goes down", "is back", "failed 6 times here", "handed out 20 Kubernetes events", "0 pending", "Every event is accounted for.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
}

func TestALogOfOneMomentMeetsTheOutage(t *testing.T) {
	log := `{"t_seconds":5,"name":"app","reason":"Progressing","message":"100% of\nit"}` + "\n\n" +
		`{"t_seconds":5,"name":"app","reason":"HealthCheckFailed","message":"no","error":"timeout"}`
	out, err := quickstart(t, log, "-input=-", short300)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := inSummary(t, out, "delivered"); n != 2 || strings.Index(out, "goes down") > strings.Index(out, "Progressing") {
		t.Errorf("%d events delivered, want 2 after the outage:\n%s", n, out)
	}
}

func TestWhatTheEndpointRefusesIsReported(t *testing.T) {
	endpoint := httptest.NewServer(http.NotFoundHandler())
	defer endpoint.Close()
	out, err := quickstart(t, "", short300, "-endpoint="+endpoint.URL)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rejected, coalesced := inSummary(t, out, "rejected"), inSummary(t, out, "coalesced")
	if rejected == 0 || rejected+coalesced != 20 || !strings.Contains(out, "→ 404 rejected") {
		t.Errorf("%d rejected and %d coalesced, want 20 in all:\n%s", rejected, coalesced, out)
	}
}

func TestWhatIsWrongWithTheInputIsSaid(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "log.jsonl")
	if err := os.WriteFile(file, []byte("{\"t_seconds\":1,\"name\":\"a\",\"reason\":\"R\"}\n{\"t_seconds\":\"2\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, stdin string
		args        []string
		want        string
	}{
		{"no such file", "", []string{"-input=" + filepath.Join(dir, "none")}, "none: "},
		{"a directory", "", []string{"-input=" + dir}, "directory"},
		{"a bad line", "", []string{"-input=" + file}, "log.jsonl: line 2: json"},
		{"no JSON", "Progressing", []string{"-input=-"}, "the standard input: line 1: invalid character"},
		{"an array", "[1]", []string{"-input=-"}, "line 1: json"},
		{"two values in a line", "{}{}", []string{"-input=-"}, "line 1: invalid character"},
		{"nothing", "\n", []string{"-input=-"}, "no events"},
		{"complaints only", `{"t_seconds":1,"name":"a","reason":null,"error":"e"}`, []string{"-input=-"}, "no events"},
		{"no time", `{"name":"a","reason":"R"}`, []string{"-input=-"}, "t_seconds is missing"},
		{"a time before the log", `{"t_seconds":-1,"name":"a","reason":"R"}`, []string{"-input=-"}, "t_seconds is -1"},
		{"no name", `{"t_seconds":1,"reason":"R"}`, []string{"-input=-"}, "name is missing"},
		{"no reason", `{"t_seconds":1,"name":"a"}`, []string{"-input=-"}, "reason is missing"},
		{"too many", strings.Repeat(`{"t_seconds":1,"name":"a","reason":"R"}`+"\n", maxEvents+1), []string{"-input=-"}, "more than 5000"},
		{"no URL", "", []string{"-endpoint=localhost:9090"}, "http or https"},
		{"a length of nothing", "", []string{"-length=0s"}, "must be positive"},
		{"an unknown flag", "", []string{"-speed=2"}, "-speed"},
		{"an argument", "", []string{"log.jsonl"}, "unexpected argument"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			out, err := quickstart(t, test.stdin, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
				t.Errorf("printed %q and returned %v, want only an error with %q", out, err, test.want)
			}
		})
	}
}

func TestAnEventWithoutAnOutcomeIsAnError(t *testing.T) {
	rows := []*row{{outcome: "delivered"}, {outcome: "coalesced"}, {}}
	good := metrics{recorded: 3, pending: 0, outcomes: map[string]int{"delivered": 1, "coalesced": 1, "expired": 1}}
	if err := good.check(rows); err != nil {
		t.Errorf("good numbers: %v", err)
	}
	bad := map[string]metrics{
		"one has no outcome":       {recorded: 3, outcomes: map[string]int{"delivered": 1, "coalesced": 1}},
		"one has two outcomes":     {recorded: 3, outcomes: map[string]int{"delivered": 1, "coalesced": 1, "expired": 2}},
		"one was not recorded":     {recorded: 2, outcomes: map[string]int{"delivered": 1, "coalesced": 1}},
		"one was not seen to come": {recorded: 3, outcomes: map[string]int{"delivered": 2, "coalesced": 1}},
	}
	for name, m := range bad {
		if m.check(rows) == nil {
			t.Errorf("%s: %s is no error", name, fmt.Sprint(m))
		}
	}
}
