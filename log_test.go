package events

import (
	"errors"
	"net/url"
	"strings"
	"testing"
)

func TestRedactionTakesEverySecretOutOfAText(t *testing.T) {
	for _, test := range []struct {
		endpoint string
		secrets  []string
		texts    []string
		keeps    []string
	}{
		{
			"https://user:pass%2Fword@hooks.example.com/services/T0000/B1111/XYZSECRET?token=abc%3Ddef&b=second#frag",
			[]string{"pass/word", "pass%2Fword", "T0000", "B1111", "XYZSECRET", "abc=def", "abc%3Ddef", "second", "frag", "dXNlcjpwYXNzL3dvcmQ", "pass%2fword", "abc%3ddef"},
			[]string{
				`Post "https://user:pass%2Fword@hooks.example.com/services/T0000/B1111/XYZSECRET?token=abc%3Ddef&b=second": dial tcp: lookup hooks.example.com: no such host`,
				"Cannot POST /services/T0000/B1111/XYZSECRET",
				"no hook XYZSECRET for user pass/word with abc=def, second",
				"authorization was Basic dXNlcjpwYXNzL3dvcmQ=",
				"no pass%2fword, no abc%3ddef",
				"see https://other.example.com/reset?key=XYZSECRET for help",
			},
			[]string{"hooks.example.com", "no such host", "Cannot POST", "other.example.com"},
		},
		{
			"https://api.example.com/bot123456:ABCDEFsecret/send?auth=Bearer+tok2SECRET&q=s3cr%26et99",
			[]string{"ABCDEFsecret", "tok2SECRET", "s3cr"},
			[]string{"token 123456:ABCDEFsecret is unknown", "bad token tok2SECRET", "no s3cr&amp;et99, no s3cr&et99"},
			[]string{"is unknown", "bad token"},
		},
		{
			"http://notification-controller.flux-system.svc.cluster.local./",
			nil,
			[]string{`Post "http://notification-controller.flux-system.svc.cluster.local./": dial tcp 10.0.0.1:80: connect: connection refused`},
			[]string{"connection refused", "10.0.0.1:80", "notification-controller"},
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
			[]string{"proxy address", "Location header"},
		},
	} {
		u, err := url.Parse(test.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		r := newRedactor(test.endpoint, u)
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

func TestAnErrorOfNetHTTPIsShownWithoutItsURL(t *testing.T) {
	u, _ := url.Parse("http://host/x")
	err := newRedactor("http://host/x", u).error(&url.Error{Op: "Post", URL: "http://host/x", Err: errors.New("connection refused")})
	if err.Error() != "connection refused" {
		t.Errorf("%q", err)
	}
	if newRedactor("http://host/x", u).error(nil) != nil {
		t.Error("an error out of nothing")
	}
}
