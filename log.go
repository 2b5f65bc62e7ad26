package events

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// lossLogInterval is the least time between two lines about one outcome.
const lossLogInterval = time.Minute

// lossLog writes about events that are lost: the first of an outcome at once,
// those that follow in at most one line a minute, which names the newest. A timer
// writes the last line, so that no loss stays unsaid because no other follows.
type lossLog struct {
	// writing is held while the timer or flush writes, so that no line comes after a
	// flush has returned.
	writing sync.Mutex

	mu     sync.Mutex // guards all below; nothing is logged under it
	losses [outcomes]struct {
		last   time.Time // of the last line
		unsaid lossLine  // what came since then
		timer  *time.Timer
	}
}

// lossLine is a line about lost events: how many, and more of the newest.
type lossLine struct {
	log           logr.Logger
	outcome       outcome
	events        int
	cause         error
	keysAndValues []any
}

func (l lossLine) write() {
	keysAndValues := append([]any{"outcome", l.outcome.String(), "events", l.events}, l.keysAndValues...)
	if l.outcome == unconfirmed {
		l.log.Info("Event may be lost: it is a duplicate of an attempt that got no answer", keysAndValues...)
	} else {
		l.log.Error(l.cause, "Event lost", keysAndValues...)
	}
}

// lost logs that events were lost. keysAndValues say more of one of them. Unless
// later is true no timer is set: what is lost now is said with the next loss.
func (l *lossLog) lost(log logr.Logger, later bool, o outcome, events int, cause error, keysAndValues ...any) {
	now := time.Now()
	l.mu.Lock()
	loss := &l.losses[o]
	line := lossLine{log, o, loss.unsaid.events + events, cause, keysAndValues}
	if wait := loss.last.Add(lossLogInterval).Sub(now); !loss.last.IsZero() && wait > 0 {
		loss.unsaid = line
		if loss.timer == nil && later {
			loss.timer = time.AfterFunc(wait, func() { l.summarize(o) })
		}
		l.mu.Unlock()
		return
	}
	loss.last, loss.unsaid = now, lossLine{}
	l.mu.Unlock()
	line.write()
}

// summarize logs the losses that were not said yet.
func (l *lossLog) summarize(o outcome) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	loss := &l.losses[o]
	if loss.timer != nil {
		loss.timer.Stop()
		loss.timer = nil
	}
	line := loss.unsaid
	if line.events > 0 {
		loss.last, loss.unsaid = time.Now(), lossLine{}
	}
	l.mu.Unlock()
	if line.events > 0 {
		line.write()
	}
}

// flush logs what was not said yet. No line of the timer follows it.
func (l *lossLog) flush() {
	for o := range outcome(outcomes) {
		l.summarize(o)
	}
}

// logKeys are the log keys that name an event.
func (n *notification) logKeys() []any {
	return []any{
		"kind", n.involved.Kind, "namespace", n.involved.Namespace, "name", n.involved.Name, "reason", n.reason,
	}
}

// redactor keeps out of the log what may be secret in the endpoint's URL: user,
// path and query, where people put tokens.
type redactor struct{ secrets []string }

var errBadRedirect = errors.New("failed to parse Location header")

const redacted = "[redacted]"

// anyURL finds the URLs in a text, in quotes as of %q or not.
var anyURL = regexp.MustCompile(`"(?:[^"\\]|\\.)*://(?:[^"\\]|\\.)*"|[^\s"'<>]*://[^\s"'<>]*`)

func newRedactor(endpoint *url.URL) redactor {
	secrets := []string{endpoint.Path, endpoint.EscapedPath(), endpoint.RawQuery, endpoint.Fragment, endpoint.EscapedFragment()}
	if user := endpoint.User; user != nil {
		password, _ := user.Password()
		secrets = append(secrets, user.String(), user.Username(), password)
	}
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return strings.Trim(s, "/") == "" })
	// The longest first: one may be a part of another, and would leave the rest of it.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	return redactor{secrets}
}

// hidesBodies reports whether answers are kept out of the log: they may repeat
// a secret in any form.
func (r redactor) hidesBodies() bool { return len(r.secrets) > 0 }

// error is the cause of an error without the URL that net/http puts before it,
// and without any other.
func (r redactor) error(err error) error {
	if err == nil {
		return nil
	}
	if badRedirect(err) {
		return errBadRedirect // its text has what the endpoint said, which may be a part of its URL
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err
	}
	text := err.Error()
	for _, secret := range r.secrets { // first: a query with a space is in a URL only in part
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return errors.New(anyURL.ReplaceAllString(text, redacted))
}

// cutAny cuts s before the first of the characters.
func cutAny(s, chars string) (before, after string, found bool) {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i], s[i:], true
	}
	return s, "", false
}
