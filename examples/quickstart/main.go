// Command quickstart replays a controller's event log through an EventRecorder
// that wraps client-go's event broadcaster, with a notification endpoint that
// goes down and comes back on the way. It prints what was recorded, how long
// each call took, when each event reached the endpoint and with what outcome,
// and at the end whether all of them are accounted for. It needs no cluster.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -input FILE -endpoint http://notification-controller.flux-system
//
// The log that it comes with is of a kustomize-controller in which one
// Kustomization, kyverno-system, stood still for minutes because the recorder of
// the time waited for the endpoint on the reconciler's goroutine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

const (
	controllerName = "kustomize-controller"

	// Together these keep a run below 15 seconds.
	longestReplay     = 10 * time.Second
	drainTimeout      = 3 * time.Second
	broadcasterLagsBy = time.Second

	// longestWait is between two attempts. It leaves some room in the drain
	// for a log that ends while events still wait for the endpoint.
	longestWait = time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	input := flags.String("input", "", "replay this log, `FILE` or - for the standard input, instead of the one that is built in")
	endpoint := flags.String("endpoint", "", "post to the notification endpoint at `URL` instead of an embedded one")
	length := flags.Duration("length", 8*time.Second, "how long the replay may take; more is cut to 10s")
	flags.SetOutput(io.Discard) // the error is printed once, by main
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stdout)
			flags.Usage()
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *length <= 0 {
		return fmt.Errorf("-length %v: must be positive", *length)
	}
	log, err := readLog(*input, stdin)
	if err != nil {
		return err
	}
	return replay(ctx, log, *endpoint, min(*length, longestReplay), stdout)
}

// replay wires everything up, as a controller's main would, plays the log and
// sums up.
func replay(ctx context.Context, log *eventLog, endpoint string, length time.Duration, stdout io.Writer) error {
	pace := log.pace(length)
	timeline := &timeline{out: stdout}
	tracker := &tracker{timeline: timeline, registry: prometheus.NewRegistry()}
	client := &http.Client{Transport: observer{http.DefaultTransport, tracker}}

	var embedded *eventstest.Endpoint // nil: the endpoint is a real one
	if endpoint == "" {
		embedded = eventstest.NewEndpoint()
		defer embedded.Close()
		endpoint = embedded.URL()
		client.Transport = observer{embedded.Client().Transport, tracker}
	}

	// A controller has a sink here that writes to the API server. This one
	// only counts what would be written.
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	kubernetes := countKubernetesEvents(broadcaster)

	recorder, err := events.NewRecorderForScheme(
		scheme.Scheme,
		broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: controllerName}),
		logr.New(logSink{timeline}),
		endpoint,
		controllerName,
		events.WithHTTPClient(client),
		events.WithMetricsRegisterer(tracker.registry),
		// The defaults in the time of the log, but short enough for the drain.
		events.WithRetryWait(pace.real(time.Second), min(pace.real(10*time.Second), longestWait)),
	)
	if err != nil {
		return err
	}

	tracker.recorder = recorder
	timeline.heading(log, pace, embedded != nil)
	timeline.begin()
	played := play(ctx, script(log, pace, length, tracker, embedded))

	// The drain is not bound to ctx: who interrupts the replay still wants to
	// see what became of the events so far.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	drained := recorder.Shutdown(drain)

	accounted := tracker.summary(kubernetes.wait(len(tracker.rows)), embedded)
	return errors.Join(played, drained, accounted)
}
