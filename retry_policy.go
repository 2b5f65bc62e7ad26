package events

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// CheckRetry is the retry policy of the recorder, as a
// retryablehttp.CheckRetry. HTTP 429 is the notification endpoint's word for
// "I have this event already": it is final and no error, on whichever attempt
// it comes. Everything else is left to
// [retryablehttp.ErrorPropagatedRetryPolicy], which retries when there is no
// answer and on 5xx other than 501, and not once ctx is done.
//
// It is exported for a retryablehttp client of your own. It keeps no state and is
// safe for concurrent use.
func CheckRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	if resp != nil && resp.StatusCode == http.StatusTooManyRequests {
		return false, nil
	}
	if resp == nil && err == nil {
		return false, errors.New("events: CheckRetry: neither a response nor an error")
	}
	return retryablehttp.ErrorPropagatedRetryPolicy(ctx, resp, err)
}

// Backoff returns how long to wait before the next attempt, as a
// retryablehttp.Backoff. The wait grows as minWait·2^attempt up to maxWait,
// where attempt is 0 after the first attempt, and is spread evenly between half
// of that and all of it, so that recorders which lost the endpoint together do
// not come back together. With the defaults of a recorder (1 s and 10 s) the waits
// are at most 1, 2, 4, 8 and then 10 seconds.
//
// The Retry-After header of a 503 takes the place of the growing wait, in
// seconds or as an HTTP date, but never exceeds maxWait (retryablehttp's own
// DefaultBackoff obeys it without a limit) and never falls below minWait. One
// that cannot be read is ignored.
//
// The result is never negative and never above maxWait. Backoff is exported for a
// retryablehttp client of your own, and safe for concurrent use.
func Backoff(minWait, maxWait time.Duration, attempt int, resp *http.Response) time.Duration {
	maxWait = max(maxWait, 0)
	minWait = min(max(minWait, 0), maxWait)
	if wait, ok := asksToWait(resp); ok {
		return min(max(wait, minWait), maxWait)
	}
	wait := minWait
	for ; attempt > 0 && wait > 0 && wait < maxWait; attempt-- {
		if wait > maxWait/2 {
			wait = maxWait // doubling would pass the limit, or overflow
		} else {
			wait *= 2
		}
	}
	if half := wait / 2; half > 0 {
		wait = half + rand.N(wait-half+1)
	}
	return wait
}

// asksToWait reports for how long a 503 asks to be left alone, if it does.
func asksToWait(resp *http.Response) (time.Duration, bool) {
	if resp == nil || resp.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	return retryAfter(resp.Header.Get("Retry-After"), time.Now())
}

// retryAfter reads a Retry-After header: a number of seconds or a date. A
// number beyond what a Duration holds saturates, a date in the past is zero.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		const most = uint64(1<<63-1) / uint64(time.Second)
		seconds, err := strconv.ParseUint(value, 10, 64)
		if err != nil || seconds > most {
			seconds = most
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		// Older notification-controllers name the zone UTC, which
		// http.ParseTime refuses.
		if at, err = time.Parse(time.RFC1123, value); err != nil {
			return 0, false
		}
	}
	return max(at.Sub(now), 0), true
}
