// Command dependency tells, without a cluster, what a slow notification
// endpoint does to an object that depends on another: once with a recorder that
// posts on the goroutine of its caller, and once with one that posts in the
// background. It prints both timelines side by side, and fails if the second
// does not keep its promise. See package story for what happens.
//
//	go run ./examples/dependency
//	go run ./examples/dependency -svg timeline.svg
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
	"github.com/eventrecorder/events/examples/dependency/story"
)

// The story takes six and a half of its minutes, and may take some more. Before
// it begins, the objects in memory need time of their own.
const (
	longestStory = 9
	preparations = 10 * time.Second
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "dependency:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("dependency", flag.ContinueOnError)
	minute := flags.Duration("minute", time.Second, "how long a minute of the story takes, a multiple of 200ms")
	picture := flags.String("svg", "", "write a picture of both timelines to `FILE`")
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
	plan, err := story.NewPlan(*minute)
	if err != nil {
		return fmt.Errorf("-minute: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, longestStory*plan.Minute+preparations)
	defer cancel()
	tellings, err := tellBoth(ctx, plan)
	if err != nil {
		return err
	}
	if err := writeText(stdout, plan, tellings); err != nil {
		return err
	}
	if *picture != "" {
		if err := os.WriteFile(*picture, drawSVG(plan, tellings), 0o644); err != nil {
			return err
		}
	}
	if err := plan.Kept(tellings[1].Timeline); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, "\nThe promise was kept: B was ready within one retry interval of A, and no event is lost.")
	return err
}

// telling is the story as it went with one kind of recorder.
type telling struct {
	Name string
	*story.Timeline
}

// tellBoth tells the story with both kinds of recorders at the same time.
func tellBoth(ctx context.Context, plan story.Plan) ([2]telling, error) {
	makers := [2]story.Maker{
		func(url string, client *http.Client) (record.EventRecorder, error) {
			return story.NewSyncRecorder(ctx, url, client, plan), nil
		},
		func(url string, client *http.Client) (record.EventRecorder, error) {
			return events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), url, "dependency",
				events.WithHTTPClient(client),
				events.WithRetryWait(plan.WaitMin, plan.Minute/6), // the defaults: 1 s and 10 s
				events.WithMetricsRegisterer(prometheus.NewRegistry()))
		},
	}
	tellings := [2]telling{{Name: "Posts on the caller's goroutine"}, {Name: "Posts in the background: package events"}}
	var errs [2]error
	var both sync.WaitGroup
	for i, maker := range makers {
		both.Go(func() {
			ep := eventstest.NewEndpoint(eventstest.WithWindow(plan.RetryAfter))
			defer ep.Close()
			tellings[i].Timeline, errs[i] = story.Play(ctx, plan, ep, maker)
		})
	}
	both.Wait()
	return tellings, errors.Join(errs[:]...)
}
