package events

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

func response(status int, header ...string) *http.Response {
	r := &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{}}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

func TestCheckRetryLeavesEverythingButDuplicatesToTheBasePolicy(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for name, test := range map[string]struct {
		ctx   context.Context
		resp  *http.Response
		err   error
		retry bool
		fails bool
	}{
		"202":                      {resp: response(202)},
		"429":                      {resp: response(429, "Retry-After", "300")},
		"429 after the deadline":   {ctx: over, resp: response(429)},
		"400":                      {resp: response(400)},
		"404":                      {resp: response(404)},
		"501":                      {resp: response(501)},
		"500":                      {resp: response(500), retry: true, fails: true},
		"503":                      {resp: response(503), retry: true, fails: true},
		"0":                        {resp: response(0), retry: true, fails: true},
		"no answer":                {err: errors.New("connection refused"), retry: true},
		"no answer, after the end": {ctx: over, err: errors.New("connection refused"), fails: true},
		"bad certificate":          {err: &url.Error{Err: &tls.CertificateVerificationError{}}, fails: true},
		"bad scheme":               {err: &url.Error{Err: errors.New("unsupported protocol scheme")}, fails: true},
		"nothing at all":           {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := test.ctx
			if ctx == nil {
				ctx = context.Background()
			}
			retry, err := CheckRetry(ctx, test.resp, test.err)
			if retry != test.retry || (err != nil) != test.fails {
				t.Errorf("retry %v, error %v; want retry %v, an error %v", retry, err, test.retry, test.fails)
			}
			if test.resp == nil && test.err == nil || test.resp != nil && test.resp.StatusCode == 429 {
				return
			}
			if baseRetry, baseErr := retryablehttp.ErrorPropagatedRetryPolicy(ctx, test.resp, test.err); baseRetry != retry || (baseErr == nil) != (err == nil) {
				t.Errorf("the base policy says %v, %v", baseRetry, baseErr)
			}
		})
	}
	var _ retryablehttp.CheckRetry = CheckRetry
	var _ retryablehttp.Backoff = Backoff
}

func TestBackoffDoublesUpToTheMaximum(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		least, most time.Duration
		attempt     int
		want        time.Duration // at most; at least half of it
	}{
		{s, 30 * s, 0, s},
		{s, 30 * s, 1, 2 * s},
		{s, 30 * s, 2, 4 * s},
		{s, 30 * s, 3, 8 * s},
		{s, 30 * s, 4, 16 * s},
		{s, 30 * s, 5, 30 * s},
		{s, 30 * s, 1000, 30 * s},
		{s, 30 * s, math.MaxInt, 30 * s},
		{s, 30 * s, -1, s},
		{s, math.MaxInt64, 1000, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64, 3, math.MaxInt64},
		{1, 3, 1, 2},
		{1, 3, 2, 3},
		{1, 1, 7, 1},
		{0, s, 3, 0},
		{2 * s, s, 0, s},
		{-s, s, 1, 0},
		{s, -s, 1, 0},
	} {
		lowest, highest := time.Duration(math.MaxInt64), time.Duration(0)
		for range 300 {
			got := Backoff(test.least, test.most, test.attempt, nil)
			lowest, highest = min(lowest, got), max(highest, got)
		}
		if lowest < test.want/2 || highest > test.want {
			t.Errorf("%v: waits from %v to %v", test, lowest, highest)
		}
		if test.want >= s && (highest-lowest < test.want/4) {
			t.Errorf("%v: waits from %v to %v are not spread", test, lowest, highest)
		}
	}
}

func TestBackoffHonoursRetryAfterOf503UpToTheMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that now is known
		const s = time.Second
		in := func(d time.Duration, layout string) string { return time.Now().UTC().Add(d).Format(layout) }
		const gmt, utc = http.TimeFormat, time.RFC1123
		for value, want := range map[string]time.Duration{
			"7":                       7 * s,
			" 7 ":                     7 * s,
			"0":                       s,
			"29":                      29 * s,
			"30":                      30 * s,
			"31":                      30 * s,
			"3600":                    30 * s,
			"99999999999":             30 * s,
			"99999999999999999999999": 30 * s,
			in(5*s, gmt):              5 * s,
			in(5*s, utc):              5 * s, // "UTC", as older notification-controllers write
			in(5*s, time.RFC850):      5 * s,
			in(5*s, time.ANSIC):       5 * s,
			in(time.Hour, gmt):        30 * s,
			in(-time.Hour, gmt):       s,
		} {
			if got := Backoff(s, 30*s, 3, response(503, "Retry-After", value)); got != want {
				t.Errorf("Retry-After %q: %v, want %v", value, got, want)
			}
		}
		for _, value := range []string{"", "-1", "1.5", "soon", "0x10", "7 s", "2030-01-01"} {
			if got := Backoff(s, 30*s, 3, response(503, "Retry-After", value)); got < 4*s || got > 8*s {
				t.Errorf("Retry-After %q was not ignored: %v", value, got)
			}
		}
		for _, status := range []int{200, 429, 500, 502, 504} {
			if got := Backoff(s, 30*s, 3, response(status, "Retry-After", "20")); got > 8*s {
				t.Errorf("Retry-After of %d was obeyed: %v", status, got)
			}
		}
	})
}
