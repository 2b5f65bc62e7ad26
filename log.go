package events

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
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
// those that follow in at most one line a minute. A timer writes the last line,
// so that no loss stays unsaid because no other follows.
type lossLog struct {
	log logr.Logger

	mu     sync.Mutex // guards all below; nothing is logged under it
	losses [outcomes]struct {
		last   time.Time // of the last line
		unsaid int       // events since then
		timer  *time.Timer
	}
}

// lost logs that events were lost. keysAndValues say more of one of them.
func (l *lossLog) lost(o outcome, events int, cause error, keysAndValues ...any) {
	now := time.Now()
	l.mu.Lock()
	loss := &l.losses[o]
	if !loss.last.IsZero() && now.Sub(loss.last) < lossLogInterval {
		loss.unsaid += events
		if loss.timer == nil {
			loss.timer = time.AfterFunc(loss.last.Add(lossLogInterval).Sub(now), func() { l.summarize(o) })
		}
		l.mu.Unlock()
		return
	}
	events += loss.unsaid
	loss.last, loss.unsaid = now, 0
	l.mu.Unlock()
	l.log.Error(cause, "Event lost", append([]any{"outcome", o.String(), "events", events}, keysAndValues...)...)
}

// summarize logs the losses that were not said yet.
func (l *lossLog) summarize(o outcome) {
	l.mu.Lock()
	loss := &l.losses[o]
	if loss.timer != nil {
		loss.timer.Stop()
		loss.timer = nil
	}
	events := loss.unsaid
	if events > 0 {
		loss.last, loss.unsaid = time.Now(), 0
	}
	l.mu.Unlock()
	if events > 0 {
		l.log.Error(nil, "More events lost", "outcome", o.String(), "events", events)
	}
}

// flush logs what was not said yet.
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

// redactor takes out of a text what must not be logged of the endpoint's URL,
// and of any other: credentials, path and query, where people put tokens.
type redactor struct{ secrets []string }

const redacted = "[redacted]"

// anyURL finds the URLs in a text, and oddURL those that cannot be told apart
// from what follows them, in quotes, as package url complains about them.
var (
	anyURL = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]*`)
	oddURL = regexp.MustCompile(`"[^"]*://[^"]*\s[^"]*"`)
)

// shortestSecret keeps words such as "/" or "v1" from being taken for secrets
// wherever they appear. Nobody is kept out by anything shorter.
const shortestSecret = 4

// newRedactor knows the secrets of an endpoint, given as it was configured and
// parsed.
func newRedactor(configured string, endpoint *url.URL) *redactor {
	r := &redactor{}
	add := func(texts ...string) {
		for _, s := range texts {
			if len(s) < shortestSecret {
				continue
			}
			quoted, _ := json.Marshal(s) // a string cannot fail
			for _, form := range []string{s, url.PathEscape(s), url.QueryEscape(s), strings.Trim(string(quoted), `"`), html.EscapeString(s)} {
				r.secrets = append(r.secrets, form, percentLower(form))
			}
		}
	}
	// addParts adds a text, what it is made of, and all that without encoding.
	addParts := func(text string) {
		add(text)
		for _, part := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune("/?#&;", r) }) {
			_, value, isPair := strings.Cut(part, "=")
			if !isPair {
				value = part
			}
			add(part, value)
			for _, unescape := range []func(string) (string, error){url.PathUnescape, url.QueryUnescape} {
				if plain, err := unescape(value); err == nil {
					add(plain)
					add(strings.FieldsFunc(plain, func(r rune) bool { return strings.ContainsRune(":, ", r) })...)
				}
			}
		}
	}
	for _, text := range []string{configured, endpoint.String()} {
		_, text, _ = strings.Cut(text, "://")
		_, afterHost, _ := cutAny(text, "/?#")
		addParts(afterHost)
	}
	add(endpoint.Path, endpoint.EscapedPath(), endpoint.RawQuery, endpoint.Fragment)
	if user := endpoint.User; user != nil {
		password, _ := user.Password()
		add(user.String(), user.Username(), password)
		// As net/http sends it.
		add(base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password)))
	}
	// The longest first: a part of a secret must not keep the rest of it
	// from being found.
	slices.SortFunc(r.secrets, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	r.secrets = slices.Compact(r.secrets)
	return r
}

// percentLower writes the percent-encoded bytes of s with small letters.
func percentLower(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:], strings.ToLower(string(b[i:i+3])))
		}
	}
	return string(b)
}

func (r *redactor) text(s string) string {
	for _, secret := range r.secrets {
		s = strings.ReplaceAll(s, secret, redacted)
	}
	s = oddURL.ReplaceAllString(s, `"`+redacted+`"`)
	return anyURL.ReplaceAllStringFunc(s, func(found string) string {
		scheme, rest, _ := strings.Cut(found, "://")
		authority, path, _ := cutAny(rest, "/?#")
		if at := strings.LastIndex(authority, "@"); at >= 0 {
			authority = redacted + authority[at:]
		}
		if strings.Contains(path, "@") { // perhaps a password with a slash in it
			authority = redacted
		}
		if path != "" {
			path = "/" + redacted
		}
		return scheme + "://" + authority + path
	})
}

// start is text for the start of a text, which may have cut a secret in two.
func (r *redactor) start(s string, cut bool) string {
	if cut && len(r.secrets) > 0 {
		s = s[:max(0, len(s)-len(r.secrets[0])+1)] // the first is the longest
	}
	return r.text(s)
}

// error is the cause of an error without the URL that net/http puts before it.
func (r *redactor) error(err error) error {
	if err == nil {
		return nil
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err
	}
	return errors.New(r.text(err.Error()))
}

// cutAny cuts s before the first of the characters.
func cutAny(s, chars string) (before, after string, found bool) {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i], s[i:], true
	}
	return s, "", false
}
