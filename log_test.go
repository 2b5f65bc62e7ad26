package events

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// loggedLines keeps what is logged, and when.
type loggedLines struct {
	mu    sync.Mutex
	start time.Time
	lines []string
	hook  func()
}

func (l *loggedLines) logger(name string) logr.Logger {
	l.start = time.Now()
	return funcr.New(func(prefix, args string) {
		if l.hook != nil {
			l.hook()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, fmt.Sprintf("%v %s %s", time.Since(l.start), prefix, args))
	}, funcr.Options{}).WithName(name)
}

// next returns the lines since the last call.
func (l *loggedLines) next() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.lines = nil }()
	return slices.Clone(l.lines)
}

// wantLines fails unless each line has the words of the one wanted.
func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	same := len(got) == len(want)
	for i := 0; same && i < len(want); i++ {
		for _, word := range strings.Fields(want[i]) {
			same = same && strings.Contains(got[i], word)
		}
	}
	if !same {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheLineOfTheMinuteNamesTheNewestLossAndHowManyThereWere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lossLog
		lines := &loggedLines{}
		log := lines.logger("r")
		l.lost(log, true, rejected, 1, errors.New("status-400"), "name", "a")
		wantLines(t, lines.next(), `0s "msg"="Event "error"="status-400" "outcome"="rejected" "events"=1 "name"="a"`)
		time.Sleep(10 * time.Second)
		l.lost(log, true, rejected, 2, errors.New("status-401"), "name", "b")
		time.Sleep(10 * time.Second)
		l.lost(log, true, rejected, 3, errors.New("status-403"), "name", "c")
		time.Sleep(40*time.Second - time.Nanosecond)
		wantLines(t, lines.next())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		wantLines(t, lines.next(), `1m0s "status-403" "events"=5 "name"="c"`)

		// The next minute begins with that line, and a quiet one ends it.
		l.lost(log, true, rejected, 1, errors.New("status-404"), "name", "d")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		wantLines(t, lines.next(), `2m0s "status-404" "events"=1`)
		l.lost(log, true, rejected, 1, errors.New("status-405"), "name", "e")
		wantLines(t, lines.next(), `3m0s "status-405" "events"=1`)
		// At the very end of the minute, a loss is said at once.
		time.Sleep(time.Minute)
		l.lost(log, true, rejected, 1, errors.New("status-406"), "name", "f")
		wantLines(t, lines.next(), `4m0s "status-406" "events"=1`)
	})
}

func TestALossIsSaidWithTheNextIfNoTimerIsWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lossLog
		lines := &loggedLines{}
		log := lines.logger("r")
		l.lost(log, false, overflow, 1, errors.New("first"))
		l.lost(log, false, overflow, 1, errors.New("second"))
		time.Sleep(time.Hour)
		wantLines(t, lines.next(), `0s "first" "events"=1`)
		l.lost(log, false, overflow, 1, errors.New("third"))
		wantLines(t, lines.next(), `1h0m0s "third" "events"=2`)
		l.lost(log, false, overflow, 1, errors.New("fourth"))
		l.flush()
		l.flush()
		wantLines(t, lines.next(), `"fourth" "events"=1`)
	})
}

func TestAnEventThatMayBeLostIsNoError(t *testing.T) {
	lines := &loggedLines{}
	var l lossLog
	l.lost(lines.logger("r"), false, unconfirmed, 1, nil, "name", "a")
	wantLines(t, lines.next(), `"level"=0 "msg"="Event may be lost: "outcome"="unconfirmed" "events"=1 "name"="a"`)
}

func TestNoLineOfATimerFollowsTheFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lossLog
		lines := &loggedLines{}
		log := lines.logger("r")
		for _, o := range []outcome{rejected, overflow, expired} {
			l.lost(log, true, o, 1, errors.New("said"))
			l.lost(log, true, o, 1, errors.New("unsaid"))
			l.lost(log, true, o, 1, errors.New("unsaid"))
		}
		lines.next()
		l.flush()
		if got := lines.next(); len(got) != 3 || strings.Count(strings.Join(got, " "), `"unsaid" "outcome"`) != 3 {
			t.Errorf("flushed %q", got)
		}
		// What is lost after the end has no timer, neither its own nor an older one.
		l.lost(log, false, rejected, 1, errors.New("late"))
		time.Sleep(time.Hour)
		synctest.Wait()
		wantLines(t, lines.next())
		for _, loss := range l.losses {
			if loss.timer != nil {
				t.Error("a timer is left")
			}
		}
		l.flush()
		wantLines(t, lines.next(), `"late"`)
		time.Sleep(time.Minute)
		// A flush without anything to say does not begin a minute.
		l.flush()
		l.lost(log, true, rejected, 1, errors.New("at-once"))
		wantLines(t, lines.next(), `"at-once"`)
	})
}

func TestAFlushWaitsForTheLineThatATimerWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lossLog
		lines := &loggedLines{}
		log := lines.logger("r")
		l.lost(log, true, rejected, 1, errors.New("first"))
		writes, goOn := make(chan struct{}), make(chan struct{})
		lines.hook = func() {
			lines.hook = nil
			close(writes)
			<-goOn
		}
		l.lost(log, true, rejected, 1, errors.New("second"))
		<-writes
		flushed := make(chan struct{})
		lines.next()
		go func() {
			l.flush()
			close(flushed)
		}()
		// A goroutine that waits on a mutex is not durably blocked: no sleep here.
		for range 1000 {
			if isDone(flushed) {
				t.Fatal("flushed, while the timer writes")
			}
			if !l.writing.TryLock() {
				continue
			}
			l.writing.Unlock()
			t.Fatal("the timer writes without saying so")
		}
		close(goOn)
		<-flushed
		wantLines(t, lines.next(), `1m0s "second"`)
	})
}

// A logger may record an event, or shut the recorder down.
func TestALoggerMayCauseAnotherLoss(t *testing.T) {
	var l lossLog
	lines := &loggedLines{}
	log := lines.logger("r")
	lines.hook = func() {
		lines.hook = nil
		l.lost(log, false, rejected, 1, errors.New("inner"))
		l.flush()
	}
	l.lost(log, false, rejected, 1, errors.New("outer"))
	wantLines(t, lines.next(), `"inner" "events"=1`, `"outer" "events"=1`)
}

func TestRecordersOfOneControllerShareTheLimitOfTheLossLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector()
		lines := &loggedLines{}
		for i := range 300 {
			c.of("one").losses.lost(lines.logger(fmt.Sprint("recorder", i)), true, rejected, 1, errors.New("refused"), "name", i)
		}
		c.of("other").losses.lost(lines.logger("other"), true, rejected, 1, errors.New("refused"))
		time.Sleep(time.Hour)
		synctest.Wait()
		wantLines(t, lines.next(), `recorder0 "events"=1 "name"=0`, `other "events"=1`, `recorder299 "events"=299 "name"=299`)
	})
}

func TestRedactionTakesEverySecretOutOfAnError(t *testing.T) {
	for _, test := range []struct {
		endpoint string
		secrets  []string
		texts    []string
		keeps    []string
	}{
		{
			"https://user:pass%2Fword@hooks.example.com/services/T0000/B1%201/XYZSECRET?token=abc%3Ddef&b=second#frag",
			[]string{"pass/word", "pass%2Fword", "T0000", "B1", "XYZSECRET", "abc%3Ddef", "second", "frag", "user"},
			[]string{
				`Post "https://user:pass%2Fword@hooks.example.com/services/T0000/B1%201/XYZSECRET?token=abc%3Ddef&b=second": dial tcp: lookup hooks.example.com: no such host`,
				`cannot post /services/T0000/B1%201/XYZSECRET?token=abc%3Ddef&b=second`,
				`cannot post /services/T0000/B1 1/XYZSECRET`,
				`no fragment frag for user:pass%2Fword`,
				`no password pass/word of user`,
				`see https://other.example.com/reset?key=XYZSECRET for help`,
			},
			[]string{"hooks.example.com: no such host", "cannot post", "no password", "for help"},
		},
		{
			"http://notification-controller.flux-system.svc.cluster.local./",
			nil,
			[]string{`Post "http://notification-controller.flux-system.svc.cluster.local./": dial tcp 10.0.0.1:80: connect: connection refused / gone`},
			[]string{"connection refused / gone", "10.0.0.1:80", "dial tcp"},
		},
		{
			"http://host/?a b&token=XYZSECRET", // not mended by net/url
			[]string{"XYZSECRET"},
			[]string{"Post http://host/?a b&token=XYZSECRET: refused"},
			[]string{"refused"},
		},
		{
			"http://host/",
			[]string{"hunter2", "tok/en", "sec ret"},
			[]string{
				`invalid proxy address "http://me:hunter2@proxy:3128/tok/en"`,
				`parse "http://me:hunter2/x@proxy": bad`,
				`parse "http://me:hunter2 sec ret@proxy/": invalid character`,
				`failed to parse Location header "https://me:hunter2@h/tok/en"`,
			},
			[]string{"proxy address", "Location header", "invalid character"},
		},
	} {
		u, err := url.Parse(test.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		r := newRedactor(u)
		if r.hidesBodies() != (u.RequestURI() != "/") {
			t.Errorf("%s: bodies hidden: %v", test.endpoint, r.hidesBodies())
		}
		var all strings.Builder
		for _, text := range test.texts {
			got := r.error(&url.Error{Op: "Post", URL: test.endpoint, Err: errors.New(text)}).Error()
			all.WriteString(got)
			for _, secret := range test.secrets {
				if strings.Contains(got, secret) {
					t.Errorf("%q is in %q", secret, got)
				}
			}
		}
		for _, word := range test.keeps {
			if !strings.Contains(all.String(), word) {
				t.Errorf("%q, which helps to understand, was taken out of %q", word, all.String())
			}
		}
	}
}

// An answer may repeat a secret in any form.
func TestBodiesAreHiddenIfTheURLMayHoldASecret(t *testing.T) {
	for endpoint, hides := range map[string]bool{
		"http://host": false, "http://host/": false, "https://host:8080/": false,
		"http://host/p": true, "http://host/?q": true, "http://host/#f": true, "http://u@host/": true, "http://:p@host/": true,
	} {
		u, err := url.Parse(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if got := newRedactor(u).hidesBodies(); got != hides {
			t.Errorf("%s: %v", endpoint, got)
		}
	}
}

func TestAnErrorOfNetHTTPIsShownWithoutItsURL(t *testing.T) {
	u, _ := url.Parse("http://host/x")
	r := newRedactor(u)
	for _, err := range []error{
		&url.Error{Op: "Post", URL: "http://host/x", Err: errors.New("connection refused")},
		fmt.Errorf("giving up: %w", &url.Error{Op: "Post", URL: "http://host/x", Err: errors.New("connection refused")}),
	} {
		if got := r.error(err); got.Error() != "connection refused" {
			t.Errorf("%q", got)
		}
	}
	if got := r.error(errors.New("HTTP status 500")); got.Error() != "HTTP status 500" {
		t.Errorf("%q", got)
	}
	if r.error(nil) != nil {
		t.Error("an error out of nothing")
	}
}
