package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
)

// children are what this test binary does instead of the tests when a test
// starts it once more. They return the exit code.
var children = map[string]func(path string) int{
	"hold": holdUntilKilled,
	"work": workUntilKilled,
}

func TestMain(m *testing.M) {
	if child := os.Getenv("JOURNAL_TEST_CHILD"); child != "" {
		os.Exit(children[child](os.Getenv("JOURNAL_TEST_PATH")))
	}
	os.Exit(m.Run())
}

func command(name, path string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "JOURNAL_TEST_CHILD="+name, "JOURNAL_TEST_PATH="+path)
	cmd.Stderr = os.Stderr
	return cmd
}

// start starts a child and returns what it prints.
func start(t *testing.T, name, path string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := command(name, path)
	out, err := cmd.StdoutPipe()
	mustDo(t, err)
	mustDo(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd, bufio.NewScanner(out)
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func holdUntilKilled(path string) int {
	j, _, err := Open(path)
	if err != nil {
		return fail(err)
	}
	if err := j.Append(entries(1), nil); err != nil {
		return fail(err)
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func TestTheLockOfAProcessEndsWithIt(t *testing.T) {
	path := newPath(t)
	cmd := command("hold", path)
	stdin, err := cmd.StdinPipe() // open until the child is killed
	mustDo(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	mustDo(t, err)
	mustDo(t, cmd.Start())
	out := bufio.NewScanner(stdout)
	if !out.Scan() {
		t.Fatal("the child has ended")
	}
	if _, _, err := Open(path); !errors.Is(err, ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
	mustDo(t, cmd.Process.Kill())
	_ = cmd.Wait()
	_, found := open(t, path)
	wantEntries(t, found.Entries, entries(1))
}

// Step n of the worker adds the entries 2n and 2n+1, and most steps mark one as
// done that was added ten steps before.
func stepAdds(n uint64) []Entry { return entries(2*n, 2*n+1) }

func stepDone(n uint64) []uint64 {
	if n < 10 || n%4 == 0 {
		return nil
	}
	return []uint64{2*(n-10) + n%2}
}

func stateAfter(n uint64) []Entry {
	var live []Entry
	for i := range n + 1 {
		live = append(live, stepAdds(i)...)
		for _, id := range stepDone(i) {
			live = slices.DeleteFunc(live, func(e Entry) bool { return e.ID == id })
		}
	}
	return live
}

func workUntilKilled(path string) int {
	j, _, err := Open(path)
	if err != nil {
		return fail(err)
	}
	for n := uint64(0); ; n++ {
		if err := j.Append(stepAdds(n), stepDone(n)); err != nil {
			return fail(err)
		}
		fmt.Println(n)
		if n%7 == 0 {
			if err := j.Rewrite(stateAfter(n)); err != nil {
				return fail(err)
			}
		}
	}
}

func TestWhatWasAppendedBeforeAKillIsReadBack(t *testing.T) {
	for range 20 {
		path := newPath(t)
		cmd, out := start(t, "work", path)
		last, killAt := uint64(0), rand.Uint64N(200)
		for out.Scan() {
			n, err := strconv.ParseUint(out.Text(), 10, 64)
			mustDo(t, err)
			last = n
			if n == killAt {
				mustDo(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait()
		if last < killAt {
			t.Fatal("the child has ended by itself")
		}

		// The step after the last reported one may be there, in whole or in part.
		j, found := open(t, path)
		must := slices.DeleteFunc(stateAfter(last), func(e Entry) bool { return slices.Contains(stepDone(last+1), e.ID) })
		may := append(stateAfter(last), stepAdds(last+1)...)
		at := 0
		for _, e := range found.Entries {
			i := slices.IndexFunc(may[at:], func(m Entry) bool { return m.ID == e.ID })
			if i < 0 {
				t.Fatalf("after step %d, entry %d is invented or out of order", last, e.ID)
			}
			wantEntries(t, []Entry{e}, may[at+i:at+i+1])
			at += i + 1
		}
		for _, m := range must {
			if !slices.Contains(ids(found.Entries), m.ID) {
				t.Fatalf("after step %d, entry %d is lost", last, m.ID)
			}
		}
		mustDo(t, j.Close())
	}
}
