package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestThePromiseIsKeptAndBothTimelinesAreShown(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "timeline.svg")
	var out strings.Builder
	if err := run(t.Context(), []string{"-minute=200ms", "-svg=" + picture}, &out); err != nil {
		t.Fatalf("%v\n…%s", err, tail(out.String()))
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("a line has %d columns: %s", n, line)
		}
	}
	for want, times := range map[string]int{
		"A IS READY":           2,
		"B IS READY":           2,
		"connection refused":   2,
		"B's worker goes on":   1,
		"The promise was kept": 1,
	} {
		if n := strings.Count(out.String(), want); n != times {
			t.Errorf("%q is there %d times, want %d", want, n, times)
		}
	}

	svg, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	wantSelfContained(t, string(svg))
	for want, times := range map[string]int{"blocked by the endpoint for": 1, ">A ready ": 2, ">B ready ": 2, ">429, Retry-After 5:00": 2, ">minutes<": 1} {
		if n := strings.Count(string(svg), want); n != times {
			t.Errorf("%q is in the picture %d times, want %d", want, n, times)
		}
	}
}

// tail is the end of a text: who sees a failure need not see all of it.
func tail(s string) string { return s[max(0, len(s)-300):] }

// wantSelfContained checks that the picture is XML and refers to nothing else.
func wantSelfContained(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
	const namespace = "http://www.w3.org/2000/svg"
	rest := strings.Replace(svg, namespace, "", 1)
	for _, never := range []string{"http", "href", "@import", "<script"} {
		if strings.Contains(rest, never) {
			t.Errorf("the picture contains %q", never)
		}
	}
}

func TestWhatIsWrongWithTheFlagsIsSaid(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-minute=1ms", "multiple of 200ms"},
		{"-minute=fast", "-minute"},
		{"-picture=x", "-picture"},
		{"timeline.svg", "unexpected argument"},
	} {
		if err := run(t.Context(), []string{test.args}, io.Discard); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", test.args, err, test.want)
		}
	}
}
