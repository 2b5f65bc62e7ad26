package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What follows is where this library posts something else than its peer, on
// purpose. A test that fails here says that the peer has changed: then the call
// may belong into the table of those that are equal.

func TestOnlyOursPostsAboutClusterScopedObjects(t *testing.T) {
	c := calls()[0]
	c.object = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u-3"}}
	ours, peers := bodies(t, c)
	if n := len(peers.requests()); n != 0 {
		t.Errorf("the peer posted %d times, it is known to post nothing", n)
	}
	want := `{"involvedObject":{"kind":"Node","name":"node-1","uid":"u-3","apiVersion":"v1"},"severity":"info",`
	if got := ours.body(); !strings.HasPrefix(got, want) {
		t.Errorf("ours begins differently\n got %s\nwant %s", got, want)
	}
}

func TestOnlyOursNamesItselfAndTheEvent(t *testing.T) {
	o, p := bodies(t, calls()[0])
	ours, peers := o.requests()[0].Header, p.requests()[0].Header
	if got := ours.Get("User-Agent"); got != "eventrecorder-events" {
		t.Errorf("ours is the User-Agent %q", got)
	}
	if got := peers.Get("User-Agent"); !strings.HasPrefix(got, "Go-http-client/") {
		t.Errorf("the peer's is the User-Agent %q, it is known to have that of net/http", got)
	}
	if ours.Get("Idempotency-Key") == "" || peers.Get("Idempotency-Key") != "" {
		t.Errorf("the keys are %q and the peer's %q", ours.Get("Idempotency-Key"), peers.Get("Idempotency-Key"))
	}
}

func TestOfOneKeyOursKeepsTheCallersValueAndThePeerTheObjects(t *testing.T) {
	const key = "event.toolkit.fluxcd.io/cluster"
	c := calls()[0]
	c.annotations = map[string]string{key: "of the caller"}
	c.object = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "apps", Name: "podinfo", Annotations: map[string]string{key: "of the object"},
	}}
	ours, peers := bodies(t, c)
	if got := ours.requests()[0].Event.Metadata[key]; got != "of the caller" {
		t.Errorf("ours is the value %q", got)
	}
	if got := peers.requests()[0].Event.Metadata[key]; got != "of the object" {
		t.Errorf("the peer's is the value %q", got)
	}
	if got, want := ours.body(), strings.Replace(peers.body(), "of the object", "of the caller", 1); got != want {
		t.Errorf("more than the value differs\n ours %s\npeers %s", got, want)
	}
}

func TestOnlyOursCutsMessagesThatTheTypeForbids(t *testing.T) {
	const most = 39000 // "Maximum length 39,000 characters", says the peer's type
	c := calls()[0]
	c.format = strings.Repeat("ü", most+1)
	ours, peers := bodies(t, c)
	got := ours.requests()[0].Event.Message
	if n := utf8.RuneCountInString(got); n > most {
		t.Errorf("ours has %d characters", n)
	}
	kept, cut := strings.CutSuffix(got, "… (truncated)")
	if !cut || !strings.HasPrefix(c.format, kept) {
		t.Errorf("ours is not the beginning of the message with a mark: …%q", got[len(got)-40:])
	}
	if peers.requests()[0].Event.Message != c.format {
		t.Error("the peer's message is not the whole one")
	}
}
