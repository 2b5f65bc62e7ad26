package events_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// load is a stream of events: each of some objects records one now and then,
// the objects evenly spread over the interval.
type load struct {
	name     string // of the objects; two streams may have the same ones
	objects  int
	every    time.Duration
	from, to time.Duration // since the start
	poisoned bool          // the endpoint of the scenario may treat them badly
}

// typical is the load unless a scenario has its own.
var typical = []load{{objects: 100, every: time.Minute, to: 20 * time.Minute}}

// fate is one event of a scenario and what became of it. All times are since
// the start.
type fate struct {
	object   string
	poisoned bool
	recorded time.Duration

	posts    int
	accepted int           // times
	arrived  time.Duration // when it was accepted first
	ended    time.Duration // its latest attempt
}

// schedule lists the events of several streams in the order of their times.
func schedule(loads []load) (all []fate, end time.Duration) {
	for i, l := range loads {
		name := l.name
		if name == "" {
			name = fmt.Sprint("stream", i, "-")
		}
		for j := range l.objects {
			offset := l.every * time.Duration(j) / time.Duration(l.objects)
			for at := l.from + offset; at < l.to; at += l.every {
				all = append(all, fate{object: fmt.Sprint(name, j), poisoned: l.poisoned, recorded: at})
			}
		}
		end = max(end, l.to)
	}
	slices.SortStableFunc(all, func(a, b fate) int { return cmp.Compare(a.recorded, b.recorded) })
	return all, end
}

// post is what a behaviour may know of an attempt.
type post struct {
	at       time.Duration // since the start
	nth      int           // of all posts, from 1
	poisoned bool
	luck     float64 // in [0, 1)
}

// behaviour is an endpoint's answer to an attempt, decided when it begins.
type behaviour func(post) reply

// reply comes after some time, unless the client gives up before.
type reply struct {
	after  time.Duration
	status int   // or
	err    error // instead of an answer
	header http.Header
}

const never = 1000 * time.Hour

func healthy(post) reply { return reply{after: 20 * time.Millisecond, status: 202} }
func hangs(post) reply   { return reply{after: never} }
func refuses(post) reply {
	return reply{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}
}
func resets(post) reply {
	return reply{err: &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}}
}

// badCertificate is what net/http's transport returns; its client adds the URL.
func badCertificate(cause error) behaviour {
	return func(post) reply {
		return reply{after: time.Millisecond, err: &tls.CertificateVerificationError{Err: cause}}
	}
}

var (
	certExpired = x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired, Detail: "in the past"}
	certUnknown = x509.UnknownAuthorityError{}
)

// answers is an endpoint that is there and in trouble.
func answers(status int) behaviour {
	return func(post) reply { return reply{after: 20 * time.Millisecond, status: status} }
}

// slow takes every event, after a time.
func slow(after time.Duration) behaviour {
	return func(post) reply { return reply{after: after, status: 202} }
}

// sometimes is bad for that share of the attempts.
func sometimes(share float64, bad behaviour) behaviour {
	return func(p post) reply {
		if p.luck < share {
			return bad(p)
		}
		return healthy(p)
	}
}

// flaps is up, then down, then up, for ever.
func flaps(up, down time.Duration, bad behaviour) behaviour {
	return func(p post) reply {
		if p.at%(up+down) < up {
			return healthy(p)
		}
		return bad(p)
	}
}

// before is one behaviour until a time, and then another.
func before(until time.Duration, bad, then behaviour) behaviour {
	return func(p post) reply {
		if p.at < until {
			return bad(p)
		}
		return then(p)
	}
}

// during is bad from one time to another.
func during(from, to time.Duration, bad behaviour) behaviour {
	return before(from, healthy, before(to, bad, healthy))
}

// inTurn is one and the other, post by post.
func inTurn(one, other behaviour) behaviour {
	return func(p post) reply {
		if p.nth%2 == 1 {
			return one(p)
		}
		return other(p)
	}
}

// poisons is bad for the poisoned events only.
func poisons(bad behaviour) behaviour {
	return func(p post) reply {
		if p.poisoned {
			return bad(p)
		}
		return healthy(p)
	}
}

// killed dies of each poisoned event, and is away for a time.
func killed(away time.Duration) behaviour {
	var back atomic.Int64
	return func(p post) reply {
		switch {
		case p.at < time.Duration(back.Load()):
			return refuses(p)
		case p.poisoned:
			back.Store(int64(p.at + away))
			return resets(p)
		}
		return healthy(p)
	}
}

// mixture is healthy and in some trouble by turns of up to a minute each, and
// healthy in the end.
func mixture(seed uint64, end time.Duration) behaviour {
	kinds := []behaviour{
		refuses, hangs, resets, answers(500), answers(502), answers(503), slow(3 * time.Second),
		sometimes(.5, refuses), sometimes(.5, hangs), sometimes(.5, answers(500)), sometimes(.8, answers(503)),
	}
	luck := rand.New(rand.NewPCG(seed, 0))
	var from func(at time.Duration) behaviour
	from = func(at time.Duration) behaviour {
		well := at + time.Duration(luck.Int64N(int64(time.Minute)))
		bad := well + time.Duration(luck.Int64N(int64(time.Minute)))
		if bad > end {
			return healthy
		}
		return before(well, healthy, before(bad, kinds[luck.IntN(len(kinds))], from(bad)))
	}
	return from(0)
}

// firstly is bad for the first post of all.
func firstly(bad reply) behaviour {
	return func(p post) reply {
		if p.nth == 1 {
			return bad
		}
		return healthy(p)
	}
}

// stage is an endpoint in memory that behaves as a scenario says, and knows
// what became of each event. Like a notification-controller, it does nothing for
// a client that is gone before the answer.
type stage struct {
	t        *testing.T
	start    time.Time
	seed     uint32
	behave   behaviour
	keyFirst bool          // any post of an event makes the next one a duplicate, as with a slow notification-controller
	back     time.Duration // see scenario

	mu     sync.Mutex
	fates  []fate
	newest map[string]int // event accepted, by object
	posts  int
	before int // those of them before the return
}

func (s *stage) Client() *http.Client { return &http.Client{Transport: s} }

func (s *stage) now() time.Duration { return time.Since(s.start) }

func (s *stage) RoundTrip(req *http.Request) (*http.Response, error) {
	defer func() { _ = req.Body.Close() }()
	n, err := eventNumber(req.Body)
	if err != nil {
		s.t.Error(err)
		return nil, err
	}
	r := s.begin(n)
	defer s.end(n)
	if r.after > 0 {
		timer := time.NewTimer(r.after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return nil, context.Cause(req.Context())
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	if r.status < 300 {
		s.accept(n)
	}
	header := r.header.Clone()
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: r.status, Header: header, Body: http.NoBody, Request: req,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}, nil
}

// eventNumber reads it from the end of the message.
func eventNumber(body io.Reader) (n int, err error) {
	var event struct{ Message string }
	if err := json.NewDecoder(body).Decode(&event); err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(event.Message[strings.LastIndex(event.Message, " ")+1:], &n)
	return n, err
}

// begin decides what comes of an attempt. The luck of an attempt depends on the
// seed, the event and how often it was posted, not on who came first.
func (s *stage) begin(n int) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.fates[n]
	f.posts++
	s.posts++
	at := s.now()
	if at < s.back {
		s.before++
	}
	if s.keyFirst && f.posts > 1 {
		return reply{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"300"}}}
	}
	luck := rand.New(rand.NewPCG(uint64(s.seed), uint64(n)<<20|uint64(f.posts))).Float64()
	return s.behave(post{at: at, nth: s.posts, poisoned: f.poisoned, luck: luck})
}

func (s *stage) end(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fates[n].ended = s.now()
}

// accept takes an event: once, and after those of its object that are older.
func (s *stage) accept(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.fates[n]
	if f.accepted++; f.accepted > 1 {
		s.t.Errorf("event %d of %s was accepted %d times", n, f.object, f.accepted)
		return
	}
	f.arrived = s.now()
	if newest, ok := s.newest[f.object]; ok && newest > n {
		s.t.Errorf("event %d of %s was accepted after %d", n, f.object, newest)
	}
	s.newest[f.object] = n
}
