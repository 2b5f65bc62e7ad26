package eventstest_test

import (
	"bufio"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// rateLimitHeaders are the headers that tell whether a request got as far as
// the limiter.
var rateLimitHeaders = []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}

func TestAnswersABodyAsNotificationControllerDoes(t *testing.T) {
	const limit = 3 << 20
	tests := []struct {
		name string
		body string
		want int
	}{
		{"an event", encode(t, message("m")), 202},
		{"an empty object", `{}`, 202},
		{"null", `null`, 202},
		{"white space around it", " \r\n{} \n", 202},
		{"unknown fields", `{"a":1,"involvedObject":{"b":[]}}`, 202},
		{"an unknown severity", `{"severity":"fatal"}`, 202},
		{"no timestamp", `{"timestamp":null}`, 202},
		{"a message over 39,000 characters", `{"message":"` + strings.Repeat("m", 39001) + `"}`, 202},
		{"a body of 3 MiB", `{}` + strings.Repeat(" ", limit-2), 202},

		{"a body over 3 MiB", `{}` + strings.Repeat(" ", limit-1), 413},
		{"garbage over 3 MiB", strings.Repeat("x", limit+1), 413},

		{"no body", ``, 400},
		{"white space only", ` `, 400},
		{"a byte order mark", "\ufeff{}", 400},
		{"trailing data", `{}x`, 400},
		{"a second object", `{}{}`, 400},
		{"a cut object", `{"message":"m`, 400},
		{"no JSON", `message=m`, 400},
		{"an array", `[{}]`, 400},
		{"a string", `"m"`, 400},
		{"a message that is a number", `{"message":1}`, 400},
		{"metadata that is not of strings", `{"message":"m","metadata":{"a":1}}`, 400},
		{"an object that is a string", `{"involvedObject":"App/ns/app"}`, 400},
		{"an empty timestamp", `{"timestamp":""}`, 400},
		{"a timestamp in another format", `{"timestamp":"Mon, 02 Jan 2006 15:04:05 GMT"}`, 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, ep endpoint) {
				got := post(t, ep, tt.body)
				wantStatus(t, got, tt.want)
				if got.body != "" {
					t.Errorf("body is %q, want none", got.body)
				}
				for _, name := range rateLimitHeaders {
					if has := got.header.Get(name) != ""; has != (tt.want == 202) {
						t.Errorf("%s present: %t", name, has)
					}
				}
				if got.header.Get("Retry-After") != "" {
					t.Error("Retry-After without a duplicate")
				}

				wantTaken := 0
				if tt.want == 202 {
					wantTaken = 1
				}
				if n := len(ep.Events()); n != wantTaken {
					t.Errorf("%d events taken, want %d", n, wantTaken)
				}
				request := ep.Requests()[0]
				if request.Status != tt.want {
					t.Errorf("recorded status %d, want %d", request.Status, tt.want)
				}
				if tt.want == 400 && request.Event.Message != "" {
					t.Error("a body that was refused left an event")
				}
			})
		})
	}
}

func TestAnswersADuplicateAsNotificationControllerDoes(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		before := time.Now().Truncate(time.Second)
		taken := post(t, ep, encode(t, message("m")))
		after := time.Now()
		duplicate := post(t, ep, encode(t, message("m")))

		wantStatus(t, taken, 202)
		wantStatus(t, duplicate, 429)
		if want := "Too Many Requests\n"; duplicate.body != want {
			t.Errorf("body is %q, want %q", duplicate.body, want)
		}
		if got, want := duplicate.header.Get("Content-Type"), "text/plain; charset=utf-8"; got != want {
			t.Errorf("Content-Type is %q, want %q", got, want)
		}
		for _, got := range []answer{taken, duplicate} {
			if limit, left := got.header.Get("X-RateLimit-Limit"), got.header.Get("X-RateLimit-Remaining"); limit != "1" || left != "0" {
				t.Errorf("%d: limit %q, remaining %q; want 1 and 0", got.status, limit, left)
			}
			reset, err := http.ParseTime(got.header.Get("X-RateLimit-Reset"))
			if err != nil {
				t.Fatalf("%d: X-RateLimit-Reset: %v", got.status, err)
			}
			if reset.Before(before.Add(5*time.Minute)) || reset.After(after.Add(5*time.Minute)) {
				t.Errorf("%d: resets at %v, want 5 minutes after %v", got.status, reset, before)
			}
		}
		if got, want := duplicate.header.Get("Retry-After"), duplicate.header.Get("X-RateLimit-Reset"); got != want {
			t.Errorf("Retry-After is %q, want %q", got, want)
		}
		if n := len(ep.Events()); n != 1 {
			t.Errorf("%d events taken, want 1", n)
		}
	})
}

func TestDuplicatesAreToldApartByTheKeyOnly(t *testing.T) {
	const group = "apps.example.com"
	with := func(kv ...string) map[string]string {
		m := map[string]string{group + "/revision": "r1", group + "/originRevision": "o1", group + "/token": "t1"}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	without := func(key string) map[string]string {
		m := with()
		delete(m, key)
		return m
	}
	first := message("m")
	first.Metadata = with()

	tests := []struct {
		name      string
		change    func(*events.Event)
		duplicate bool
	}{
		{"nothing changed", func(*events.Event) {}, true},

		{"name", func(e *events.Event) { e.InvolvedObject.Name = "other" }, false},
		{"namespace", func(e *events.Event) { e.InvolvedObject.Namespace = "other" }, false},
		{"no namespace", func(e *events.Event) { e.InvolvedObject.Namespace = "" }, false},
		{"kind", func(e *events.Event) { e.InvolvedObject.Kind = "Other" }, false},
		{"message", func(e *events.Event) { e.Message = "other" }, false},
		{"revision", func(e *events.Event) { e.Metadata = with(group+"/revision", "r2") }, false},
		{"origin revision", func(e *events.Event) { e.Metadata = with(group+"/originRevision", "o2") }, false},
		{"token", func(e *events.Event) { e.Metadata = with(group+"/token", "t2") }, false},
		{"empty token", func(e *events.Event) { e.Metadata = with(group+"/token", "") }, false},
		{"no revision", func(e *events.Event) { e.Metadata = without(group + "/revision") }, false},
		{"no origin revision", func(e *events.Event) { e.Metadata = without(group + "/originRevision") }, false},
		{"no token", func(e *events.Event) { e.Metadata = without(group + "/token") }, false},
		// The keys of the metadata have the group of the first event. With
		// another group they are no longer looked at.
		{"group", func(e *events.Event) { e.InvolvedObject.APIVersion = "other.example.com/v1" }, false},
		{"no API version", func(e *events.Event) { e.InvolvedObject.APIVersion = "" }, false},

		{"version", func(e *events.Event) { e.InvolvedObject.APIVersion = group + "/v2" }, true},
		{"severity", func(e *events.Event) { e.Severity = "error" }, true},
		{"reason", func(e *events.Event) { e.Reason = "Other" }, true},
		{"time", func(e *events.Event) { e.Timestamp = metav1.Unix(1, 0) }, true},
		{"UID", func(e *events.Event) { e.InvolvedObject.UID = "u" }, true},
		{"resource version", func(e *events.Event) { e.InvolvedObject.ResourceVersion = "2" }, true},
		{"field path", func(e *events.Event) { e.InvolvedObject.FieldPath = "spec" }, true},
		{"controller", func(e *events.Event) { e.ReportingController = "other" }, true},
		{"instance", func(e *events.Event) { e.ReportingInstance = "other" }, true},
		{"action", func(e *events.Event) { e.Action = "Other" }, true},
		{"related object", func(e *events.Event) { e.RelatedObject = &corev1.ObjectReference{Name: "other"} }, true},
		{"other metadata of the group", func(e *events.Event) { e.Metadata = with(group+"/summary", "s") }, true},
		{"checksum", func(e *events.Event) { e.Metadata = with(group+"/checksum", "c", group+"/digest", "d") }, true},
		{"metadata without a group", func(e *events.Event) { e.Metadata = with("token", "t2", "revision", "r2") }, true},
		{"metadata of another group", func(e *events.Event) { e.Metadata = with("other.example.com/token", "t2") }, true},
		{"token of the event group", func(e *events.Event) { e.Metadata = with("event.toolkit.fluxcd.io/token", "t2") }, true},
		{"token in other letters", func(e *events.Event) { e.Metadata = with(group+"/Token", "t2") }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := eventstest.NewTransport()
			second := first
			second.Metadata = maps.Clone(first.Metadata)
			tt.change(&second)
			wantStatus(t, post(t, tr, encode(t, first)), 202)
			want := 202
			if tt.duplicate {
				want = 429
			}
			wantStatus(t, post(t, tr, encode(t, second)), want)
		})
	}
}

func TestMetadataOfAnObjectWithoutGroupDoesNotCount(t *testing.T) {
	for _, apiVersion := range []string{"", "v1", "a/b/c"} {
		t.Run(apiVersion, func(t *testing.T) {
			tr := eventstest.NewTransport()
			event := message("m")
			event.InvolvedObject.APIVersion = apiVersion
			wantStatus(t, post(t, tr, encode(t, event)), 202)
			event.Metadata = map[string]string{"apps.example.com/revision": "r", "revision": "r", apiVersion + "/token": "t"}
			if apiVersion == "" {
				delete(event.Metadata, "/token") // that is what <group>/token is for the group ""
			}
			wantStatus(t, post(t, tr, encode(t, event)), 429)
		})
	}
}

func TestTicksBeginWithTheFirstEventOfAKeyAndDoNotMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		start := time.Now()
		steps := []struct {
			at    time.Duration
			event string
			want  int
			reset time.Duration
		}{
			{0, "m", 202, 5 * time.Minute},
			{0, "m", 429, 5 * time.Minute},
			{time.Minute, "other", 202, 6 * time.Minute},
			{5*time.Minute - 1, "m", 429, 5 * time.Minute},
			{5 * time.Minute, "m", 202, 10 * time.Minute},
			{5 * time.Minute, "other", 429, 6 * time.Minute},
			{12 * time.Minute, "m", 202, 15 * time.Minute},
			{12 * time.Minute, "other", 202, 16 * time.Minute},
			{15*time.Minute - 1, "m", 429, 15 * time.Minute},
			{15 * time.Minute, "m", 202, 20 * time.Minute},
			{15 * time.Minute, "other", 429, 16 * time.Minute},
			{25 * time.Hour, "m", 202, 25*time.Hour + 5*time.Minute},
		}
		for _, step := range steps {
			time.Sleep(time.Until(start.Add(step.at)))
			got := post(t, tr, encode(t, message(step.event)))
			if got.status != step.want {
				t.Errorf("%q at %v answered %d, want %d", step.event, step.at, got.status, step.want)
			}
			reset := start.Add(step.reset).UTC().Format(http.TimeFormat)
			if at := got.header.Get("X-RateLimit-Reset"); at != reset {
				t.Errorf("%q at %v resets at %s, want %s", step.event, step.at, at, reset)
			}
		}
	})
}

func TestWithWindowSetsTheTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport(eventstest.WithWindow(time.Second))
		wantStatus(t, post(t, tr, `{}`), 202)
		time.Sleep(time.Second - time.Nanosecond)
		wantStatus(t, post(t, tr, `{}`), 429)
		time.Sleep(time.Nanosecond)
		wantStatus(t, post(t, tr, `{}`), 202)
	})
}

func TestWithoutAWindowNothingIsADuplicate(t *testing.T) {
	for _, d := range []time.Duration{0, -time.Second} {
		forBoth(t, func(t *testing.T, ep endpoint) {
			for range 3 {
				got := post(t, ep, `{}`)
				wantStatus(t, got, 202)
				if at := got.header.Get("X-RateLimit-Reset"); at != "" {
					t.Errorf("X-RateLimit-Reset is %q, want none", at)
				}
			}
		}, eventstest.WithWindow(d))
	}
}

func TestForgottenEventsAreTakenAgain(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		post(t, ep, `{}`)
		ep.Forget()
		wantStatus(t, post(t, ep, `{}`), 202)
		wantStatus(t, post(t, ep, `{}`), 429)
		if n := len(ep.Events()); n != 2 {
			t.Errorf("%d events kept, want 2", n)
		}
	})
}

func TestMethodPathAndContentTypeDoNotMatter(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		for _, method := range []string{"POST", "PUT", "GET", "DELETE", "PATCH", "WHATEVER"} {
			for _, path := range []string{"", "/", "/a/b", "/favicon.ico", "/a%2Fb?c=d"} {
				for _, contentType := range []string{"", "application/json", "text/xml"} {
					ep.Forget()
					req, err := http.NewRequestWithContext(t.Context(), method, ep.URL()+path, strings.NewReader(`{}`))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Content-Type", contentType)
					got, err := do(ep.Client(), req)
					if err != nil {
						t.Fatal(err)
					}
					if got.status != 202 {
						t.Errorf("%s %q as %q answered %d, want 202", method, path, contentType, got.status)
					}
				}
			}
		}
	})
}

func TestARequestWithoutABodyIsRefused(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ep.URL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := do(ep.Client(), req)
		if err != nil {
			t.Fatal(err)
		}
		wantStatus(t, got, 400)
		if path := ep.Requests()[0].Path; path != "/" {
			t.Errorf("path is %q, want /", path)
		}
	})
}

func TestABodyThatEndsTooEarlyIsRefused(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	conn, err := net.Dial("tcp", address(ep))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{}"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 400 || resp.ContentLength != 0 {
		t.Errorf("answered %d with %d bytes, want 400 with none", resp.StatusCode, resp.ContentLength)
	}
	if n := len(ep.Events()); n != 0 {
		t.Errorf("%d events taken, want none", n)
	}
}

func TestConnectionsAreReusedAfterEveryKindOfAnswer(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	var reused []bool
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { reused = append(reused, info.Reused) },
	})
	for _, body := range []string{`{}`, `{}`, `x`, strings.Repeat(" ", 3<<20+1), `{"message":"m"}`} {
		if _, err := tryPost(ctx, ep, body); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := statuses(ep.Requests()), "[202 429 400 413 202]"; got != want {
		t.Errorf("answered %s, want %s", got, want)
	}
	if want := []bool{false, true, true, true, true}; !slices.Equal(reused, want) {
		t.Errorf("reused %v, want %v", reused, want)
	}
}

func TestServerHasTheLimitsOfNotificationController(t *testing.T) {
	s := eventstest.NewServer(nil)
	if s.IdleTimeout != 30*time.Second {
		t.Errorf("idle timeout is %v", s.IdleTimeout)
	}
	if s.ReadTimeout != 30*time.Second {
		t.Errorf("read timeout is %v", s.ReadTimeout)
	}
	if s.ReadHeaderTimeout != 10*time.Second {
		t.Errorf("read header timeout is %v", s.ReadHeaderTimeout)
	}
	if s.WriteTimeout != 0 {
		t.Errorf("write timeout is %v", s.WriteTimeout)
	}
	if s.MaxHeaderBytes != 256<<10 {
		t.Errorf("header limit is %d", s.MaxHeaderBytes)
	}
	if s.Protocols.HTTP2() || s.Protocols.UnencryptedHTTP2() || !s.Protocols.HTTP1() {
		t.Errorf("protocols are %v", s.Protocols)
	}
}
