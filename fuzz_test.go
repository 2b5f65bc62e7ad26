package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func FuzzPayload(f *testing.F) {
	f.Add("Pod", "v1", "default", "podinfo", "uid", "1", "Normal", "Ready", "", "all is well", "k", "v", "event.toolkit.fluxcd.io/k", "o", false)
	f.Add("Kustomization", "kustomize.toolkit.fluxcd.io/v1", "", "système:node", "", "", "Warning", "<&>", "Apply", "\xff\xfe\u2028 100%", "a/token", "\x00", "x", "", true)
	f.Add("", "", "", "", "", "", "", "", "", strings.Repeat("\U0001F98A", 40000), "", "", "", "", true)
	f.Fuzz(func(t *testing.T, kind, apiVersion, namespace, name, uid, version, eventtype, reason, action, message, key, value, objectKey, objectValue string, related bool) {
		ref := &corev1.ObjectReference{Kind: kind, APIVersion: apiVersion, Namespace: namespace, Name: name, UID: types.UID(uid), ResourceVersion: version}
		var relatedRef *corev1.ObjectReference
		if related {
			relatedRef = &corev1.ObjectReference{Kind: name, Name: kind}
		}
		annotations := map[string]string{key: value}
		recorded := time.Now()
		it := newItem(&call{regarding: ref, related: relatedRef,
			annotations: annotations, ofObject: map[string]string{objectKey: objectValue},
			eventtype: eventtype, reason: reason, action: action, message: message})
		it.recorded = recorded
		if it.bytes < len(message)/4 {
			t.Errorf("%d bytes charged for a message of %d", it.bytes, len(message))
		}
		body, err := json.Marshal(it.event("controller", "instance"))
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(body) || !utf8.Valid(body) {
			t.Fatalf("not valid: %q", body)
		}
		var got Event
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		if n := utf8.RuneCountInString(got.Message); n > 39_000 {
			t.Errorf("message of %d characters", n)
		}
		// JSON replaces each invalid byte by U+FFFD.
		valid := func(s string) string { return string([]rune(s)) }
		short := utf8.RuneCountInString(message) <= 39_000
		if short && got.Message != valid(message) {
			t.Errorf("message %q, want %q", got.Message, message)
		}
		if got.Reason != valid(reason) || got.Action != valid(action) || (got.Severity == "error") != (eventtype == "Warning") {
			t.Errorf("%+v", got)
		}
		if got.InvolvedObject.Kind != valid(kind) || got.InvolvedObject.Name != valid(name) || got.InvolvedObject.Namespace != valid(namespace) ||
			got.InvolvedObject.APIVersion != valid(apiVersion) || string(got.InvolvedObject.UID) != valid(uid) || got.InvolvedObject.ResourceVersion != valid(version) {
			t.Errorf("involved object %+v", got.InvolvedObject)
		}
		if (got.RelatedObject != nil) != related {
			t.Errorf("related object %+v", got.RelatedObject)
		}
		for k, v := range annotations {
			if utf8.ValidString(k) && got.Metadata[k] != valid(v) && !strings.Contains(k, "\uFFFD") {
				t.Errorf("metadata %q: %q, want %q", k, got.Metadata[k], v)
			}
		}
		if got.Timestamp.Unix() != recorded.Unix() {
			t.Errorf("time %v", got.Timestamp)
		}
	})
}

func FuzzEndpoint(f *testing.F) {
	for _, seed := range []string{"http://host/", "https://user:pass@host:1/p?q#f", "localhost:9090", "not a url", "http://[::1]:80/", "?a b", "http://%zz", "//x@y/z?w", "http://a:b?c@d"} {
		f.Add(seed)
	}
	const secret = "zqSECRETqz"
	f.Fuzz(func(t *testing.T, endpoint string) {
		if u, err := parseEndpoint(endpoint); err == nil {
			if u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
				t.Errorf("%q was taken: %+v", endpoint, u)
			}
			r := newRedactor(u)
			if got := r.error(&url.Error{Op: "Post", URL: endpoint, Err: errors.New("failed " + endpoint)}).Error(); len(endpoint) > 0 && got == "" {
				t.Error("an empty error")
			}
		}
		// A secret where URLs have them, in whatever surroundings.
		for _, url := range []string{
			"http://user:" + secret + "@" + endpoint, endpoint + "://user:" + secret + "@host/", "http://host/" + secret + endpoint,
			"http://host/" + endpoint + "?token=" + secret, "bad scheme://host/" + secret + endpoint, "ftp://u:" + secret + "@host/" + endpoint,
		} {
			u, err := parseEndpoint(url)
			if err != nil {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("%q: the error shows the secret: %v", url, err)
				}
				continue
			}
			if strings.Contains(u.Host, secret) {
				continue // it is the host's name then
			}
			r := newRedactor(u)
			if strings.Contains(url, secret) && !r.hidesBodies() {
				t.Errorf("%q: an answer may repeat the secret", url)
			}
			for _, text := range []string{"failed: " + u.String(), fmt.Sprintf("failed: %q", u), "cannot post " + u.RequestURI()} {
				if got := r.error(errors.New(text)).Error(); strings.Contains(got, secret) {
					t.Errorf("%q shows the secret: %q", text, got)
				}
			}
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"", "0", "-1", "3600", "99999999999999999999", "Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 2099 23:59:59 UTC", "soon", "1e9", "+5", "٣"} {
		f.Add(seed, 503, 3, int64(time.Second), int64(30*time.Second))
	}
	f.Fuzz(func(t *testing.T, value string, status, attempt int, least, most int64) {
		resp := &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {value}}}
		if wait := Backoff(time.Duration(least), time.Duration(most), attempt, resp); wait < 0 || wait > max(time.Duration(most), 0) {
			t.Errorf("waits %v, maximum %v", wait, time.Duration(most))
		}
	})
}
