package events_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// tests returns the names of all test functions of the package and its
// neighbours.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, pattern := range []string{"*_test.go", "eventstest/*_test.go", "internal/*/*_test.go", "docs/*/*_test.go", "examples/*/*_test.go", "examples/*/*/*_test.go", "e2e/*_test.go", "compare/*_test.go", "compare/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example|Benchmark)\w+)\(`).FindAllStringSubmatch(readFile(t, file), -1) {
				names[m[1]] = true
			}
		}
	}
	return names
}

func TestEveryTestThatTheDocumentationNamesExists(t *testing.T) {
	names := testNames(t)
	for _, file := range []string{"docs/guarantees.md", "docs/cases.md", "docs/operations.md"} {
		named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(readFile(t, file), -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", file)
		}
		for _, m := range named {
			if !names[m[1]] {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
}

func TestEveryCaseHasATest(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| (\\d+) \\|.*`(?:Test|Fuzz)\\w+`.*\\|$").FindAllStringSubmatch(readFile(t, "docs/cases.md"), -1)
	seen := map[string]bool{}
	for _, m := range rows {
		seen[m[1]] = true
	}
	if len(seen) != 76 {
		t.Errorf("docs/cases.md has %d of 76 rows with a test", len(seen))
	}
}

// The Go code of the README is that of example_test.go, which is compiled and,
// where it can be, run.
func TestTheCodeOfTheReadmeCompiles(t *testing.T) {
	plain := func(s string) string { // indentation does not count
		lines := strings.Split(s, "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return strings.Join(lines, "\n")
	}
	compiled := plain(readFile(t, "example_test.go"))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readFile(t, "README.md"), -1)
	if len(blocks) < 3 {
		t.Errorf("only %d blocks of code", len(blocks))
	}
	for i, block := range blocks {
		if i == 0 { // the imports of the first block are other ones
			_, block[1], _ = strings.Cut(block[1], "\n)\n")
		}
		if !strings.Contains(compiled, plain(block[1])) {
			t.Errorf("not in example_test.go:\n%s", block[1])
		}
	}
	if err := testingYourController(t.Context(), pod("a")); err != nil {
		t.Error(err)
	}
	// The name of the controller is taken if the test runs a second time.
	mgr := newManager(t, ctrl.Options{Controller: config.Controller{SkipNameValidation: ptr(true)}})
	if err := setUp(mgr); err != nil {
		t.Error(err)
	}
	_, _, _ = movingToEventsV1, writingThroughEventsV1, afterALostLease // compiled; to run them, the manager must run
	if lines := strings.Count(readFile(t, "README.md"), "\n"); lines > 245 {
		t.Errorf("README.md has %d lines", lines)
	}
}
