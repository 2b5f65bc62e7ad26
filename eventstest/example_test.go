package eventstest_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// postEvent stands for the controller under test.
func postEvent(client *http.Client, url, message string) {
	body := strings.NewReader(`{"involvedObject":{"kind":"App","name":"app"},"message":"` + message + `"}`)
	resp, err := client.Post(url, "application/json", body)
	if err != nil {
		fmt.Println("no answer")
		return
	}
	resp.Body.Close()
	fmt.Println(resp.Status)
}

func Example() {
	ep := eventstest.NewEndpoint()
	defer ep.Close()

	postEvent(ep.Client(), ep.URL(), "all is well")
	postEvent(ep.Client(), ep.URL(), "all is well")

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	taken, err := ep.Wait(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, event := range taken {
		fmt.Printf("%s: %s\n", event.InvolvedObject.Name, event.Message)
	}
	// Output:
	// 202 Accepted
	// 429 Too Many Requests
	// app: all is well
}

func ExampleEndpoint_BehaveNext() {
	ep := eventstest.NewEndpoint()
	defer ep.Close()

	ep.BehaveNext(eventstest.Status(http.StatusServiceUnavailable), eventstest.Reset())
	for range 3 {
		postEvent(ep.Client(), ep.URL(), "all is well")
	}
	// Output:
	// 503 Service Unavailable
	// no answer
	// 202 Accepted
}

func ExampleEndpoint_Down() {
	ep := eventstest.NewEndpoint()
	defer ep.Close()

	ep.Down()
	postEvent(ep.Client(), ep.URL(), "all is well")
	if err := ep.Up(); err != nil {
		fmt.Println(err)
	}
	postEvent(ep.Client(), ep.URL(), "all is well")
	// Output:
	// no answer
	// 202 Accepted
}

func ExampleEndpoint_WaitFor() {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	postEvent(ep.Client(), ep.URL(), "installed")
	postEvent(ep.Client(), ep.URL(), "ready")

	event, err := ep.WaitFor(context.Background(), func(e events.Event) bool {
		return e.Message == "ready"
	})
	fmt.Println(event.InvolvedObject.Kind, event.Message, err)
	// Output:
	// 202 Accepted
	// 202 Accepted
	// App ready <nil>
}

// A Behavior of one's own: the event is taken, but its answer is lost.
func ExampleBehavior() {
	ep := eventstest.NewEndpoint()
	defer ep.Close()

	ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		normal.ServeHTTP(w, r)
		panic(http.ErrAbortHandler)
	})
	postEvent(ep.Client(), ep.URL(), "all is well")
	postEvent(ep.Client(), ep.URL(), "all is well")
	// Output:
	// no answer
	// 429 Too Many Requests
}

func ExampleTransport() {
	tr := eventstest.NewTransport()
	client := &http.Client{Transport: tr}

	postEvent(client, tr.URL(), "all is well")
	tr.Down()
	postEvent(client, tr.URL(), "lost")
	fmt.Println(len(tr.Events()), "event taken")
	// Output:
	// 202 Accepted
	// no answer
	// 1 event taken
}
