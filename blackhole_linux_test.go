package events_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	events "github.com/eventrecorder/events"
)

// blackhole returns the address of a port that drops what it is sent: a
// listener that takes nothing, with a backlog that is full.
func blackhole(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprint("127.0.0.1:", name.(*syscall.SockaddrInet4).Port)
	for range 10 {
		c, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Skip("the backlog does not fill on this system")
	return ""
}

// net/http goes on connecting after an attempt is over. Dials to an endpoint that
// drops every packet, and handshakes with one that never answers, must not pile up.
func TestConnectionsThatAreNotMadeInTimeDoNotPileUp(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connects, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, url := range map[string]string{"dials": "http://" + blackhole(t), "TLS handshakes": "https://" + silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			h := newHarness(t, url, events.WithTimeout(50*time.Millisecond), events.WithRetryWait(time.Millisecond, time.Millisecond))
			h.log.quiet = true
			for i := range 20 {
				h.say(fmt.Sprint("object", i), "m")
			}
			// The first attempts all begin at once, and then there is one every
			// 1 to 2 s. If connecting went on for the 5 s that it may take, it would
			// always be under way.
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			least := math.MaxInt
			for ctx.Err() == nil && least > 4 {
				wait, done := context.WithTimeout(ctx, 20*time.Millisecond)
				_ = h.Flush(wait)
				done()
				if h.value("event_recorder_attempts_total") >= 4 {
					least = min(least, runtime.NumGoroutine()-before)
				}
			}
			if least > 4 {
				t.Errorf("never less than %d goroutines more", least)
			}
			h.shutdownNow()
		})
	}
}

// A dial has its own limit in an attempt that may take longer.
func TestADialEndsInTimeInALongAttempt(t *testing.T) {
	t.Parallel()
	h := newHarness(t, "http://"+blackhole(t), events.WithTimeout(time.Minute), events.WithRetryWait(time.Minute, time.Minute))
	start := time.Now()
	h.say("a", "m")
	h.attemptsAreMade(1, 2*events.ConnectTimeout)
	if took := time.Since(start); took < events.ConnectTimeout-time.Second {
		t.Errorf("ended after %v", took)
	}
	h.shutdownNow()
}
