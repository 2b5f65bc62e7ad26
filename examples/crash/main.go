// Command crash shows, without a cluster, that pending events survive the end of
// their process. A first process records events while the notification endpoint is
// away, and is killed with SIGKILL. A second one starts on the same journal
// (events.WithJournal). The account at the end says what arrived; the program fails
// unless every event arrived once, and those about one object in their order.
//
//	go run ./examples/crash
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// The program runs itself as the two processes. These variables tell it so, and the
// processes what they need.
const (
	roleVariable      = "CRASH_EXAMPLE_ROLE"
	directoryVariable = "CRASH_EXAMPLE_DIRECTORY"
	endpointVariable  = "CRASH_EXAMPLE_ENDPOINT"

	first, second = "first", "second"
)

const (
	rounds = 4 // of the first process: an event about each object
	pause  = 50 * time.Millisecond

	// pendingFor is what the journal promises: an event that was pending for this long
	// survives. Twice that, for a machine that is busy.
	pendingFor = 2 * 100 * time.Millisecond

	longestRun = 14 * time.Second
)

var objects = []string{"backend", "frontend", "podinfo"}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), longestRun)
	defer cancel()
	var err error
	if role := os.Getenv(roleVariable); role != "" {
		err = controller(ctx, role)
	} else {
		err = run(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

// controller is what the two processes do: what every controller does.
func controller(ctx context.Context, role string) error {
	log := funcr.New(func(_, line string) { fmt.Println("logs", line) }, funcr.Options{
		RenderBuiltinsHook: func(kv []any) []any { return kv[len(kv)-2:] }, // only the message
		RenderValuesHook:   func([]any) []any { return nil },               // not the controller's name
	})
	recorder, err := events.NewRecorderForScheme(nil, nil, log, os.Getenv(endpointVariable), "kustomize-controller",
		events.WithJournal(os.Getenv(directoryVariable)))
	if err != nil {
		return err
	}
	from, to := 1, rounds
	if role == second {
		from, to = rounds+1, rounds+1
	}
	for n := from; n <= to; n++ {
		for _, name := range objects {
			message := fmt.Sprintf("event %d", n)
			recorder.Event(object(name), corev1.EventTypeNormal, "Progressing", message)
			fmt.Printf("records %s of %s\n", message, name)
			time.Sleep(pause)
		}
	}
	if role == second {
		return recorder.Shutdown(ctx)
	}
	fmt.Println("has recorded all and waits")
	<-ctx.Done() // for its end
	return errors.New("nobody has killed me")
}

func object(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "kustomize.toolkit.fluxcd.io/v1",
		Kind:       "Kustomization",
		Namespace:  "flux-system",
		Name:       name,
	}
}

// story tells what happens, and when.
type story struct {
	out   io.Writer
	began time.Time
}

func (s *story) say(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, "%5.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "crash-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	endpoint := eventstest.NewEndpoint()
	defer endpoint.Close()
	s := &story{out, time.Now()}

	endpoint.Down()
	s.say("The notification endpoint is away: connections are refused.")
	err = s.process(ctx, first, dir, endpoint.URL(), func(process *os.Process, line string) {
		if strings.Contains(line, "waits") {
			time.Sleep(pendingFor)
			_ = process.Kill() // SIGKILL, where there are signals
		}
	})
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Exited() && exit.ExitCode() == 0 {
		return fmt.Errorf("the first process was not killed: %w", err)
	}
	s.say("The first process is killed. %d events have arrived. The journal has %d bytes.", len(endpoint.Events()), size(dir))

	if err := endpoint.Up(); err != nil {
		return err
	}
	s.say("The endpoint is back.")
	if err := s.process(ctx, second, dir, endpoint.URL(), func(*os.Process, string) {}); err != nil {
		return fmt.Errorf("the second process: %w", err)
	}
	s.say("The second process has ended. The journal has %d bytes.", size(dir))
	return s.account(endpoint.Events())
}

// process runs this program as one of the two processes and shows each line that it
// prints.
func (s *story) process(ctx context.Context, role, dir, url string, onLine func(*os.Process, string)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, directoryVariable+"="+dir, endpointVariable+"="+url)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.say("The %s process starts.", role)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		s.say("    %s %s", role, lines.Text())
		onLine(cmd.Process, lines.Text())
	}
	return cmd.Wait()
}

// size is that of the journal.
func size(dir string) (bytes int64) {
	found, _ := filepath.Glob(filepath.Join(dir, "*.journal"))
	for _, path := range found {
		if info, err := os.Stat(path); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

// account prints what arrived about each object, and returns an error unless that is
// every event, once, in the order of recording.
func (s *story) account(arrived []events.Event) error {
	var want []string
	for n := range rounds + 1 {
		want = append(want, fmt.Sprintf("event %d", n+1))
	}
	var errs []error
	_, _ = fmt.Fprintln(s.out, "\nWhat arrived, in this order:")
	for _, name := range objects {
		var got []string
		for _, e := range arrived {
			if e.InvolvedObject.Name == name {
				got = append(got, e.Message)
			}
		}
		_, _ = fmt.Fprintf(s.out, "  %-9s %s\n", name, strings.Join(got, ", "))
		if !slices.Equal(got, want) {
			errs = append(errs, fmt.Errorf("%s: %q arrived, want %q", name, got, want))
		}
	}
	if n := len(objects) * len(want); len(arrived) != n {
		errs = append(errs, fmt.Errorf("%d events arrived, want %d", len(arrived), n))
	}
	if len(errs) == 0 {
		_, _ = fmt.Fprintf(s.out, "All %d events arrived once and in order, %d of them recorded by a process that was killed.\n",
			len(arrived), rounds*len(objects))
	}
	return errors.Join(errs...)
}
