package events_test

import (
	"context"
	"fmt"
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
			// Fifty attempts of each of the eight workers: with connections
			// that take 5 s or more, some 400 would be under way.
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			most := 0
			for ctx.Err() == nil && h.value("event_recorder_attempts_total") < 400 {
				wait, done := context.WithTimeout(ctx, 20*time.Millisecond)
				_ = h.Flush(wait)
				done()
				most = max(most, runtime.NumGoroutine()-before)
			}
			t.Logf("%d goroutines more", most)
			// A worker, a dial, and what the dial needs.
			if most > 8*5 {
				t.Errorf("%d goroutines more", most)
			}
			h.shutdownNow()
		})
	}
}
