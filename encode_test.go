package events

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// checkEncoding compares the payload with what json.Marshal makes of the event,
// and the event with what comes out of the payload.
func checkEncoding(t *testing.T, n *notification, controller, instance string) {
	t.Helper()
	event := n.event(controller, instance)
	want, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	got := n.appendJSON(nil, controller, instance)
	if !bytes.Equal(got, want) {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	const prefix = "kept,"
	if after := n.appendJSON([]byte(prefix), controller, instance); string(after) != prefix+string(want) {
		t.Fatalf("after %q: %s", prefix, after)
	}

	if year := n.recorded.UTC().Year(); year < 0 || year > 9999 {
		return // RFC 3339 has no such year, and metav1.Time cannot read it
	}
	var read Event
	if err := json.Unmarshal(got, &read); err != nil {
		t.Fatal(err)
	}
	if sent := event.Timestamp.Truncate(time.Second); !read.Timestamp.Time.Equal(sent) {
		t.Errorf("read time %v, sent %v", read.Timestamp, sent)
	}
	sent := readable(n, event)
	read.Timestamp, sent.Timestamp = metav1.Time{}, metav1.Time{}
	if !reflect.DeepEqual(read, sent) {
		t.Errorf("read %+v\nsent %+v", read, sent)
	}
}

// readable is the event with U+FFFD for each invalid byte, which is what JSON
// can carry.
func readable(n *notification, e Event) Event {
	repair := func(s *string) { *s = string([]rune(*s)) }
	for _, s := range referenceStrings(nil, &e.InvolvedObject) {
		repair(s)
	}
	if e.RelatedObject != nil {
		related := *e.RelatedObject
		for _, s := range referenceStrings(nil, &related) {
			repair(s)
		}
		e.RelatedObject = &related
	}
	for _, s := range []*string{&e.Message, &e.Reason, &e.Action, &e.ReportingController, &e.ReportingInstance} {
		repair(s)
	}
	if e.Metadata != nil {
		e.Metadata = make(map[string]string)
		for _, a := range n.metadata { // of keys that are now equal, the last one is read
			repair(&a.key)
			repair(&a.value)
			e.Metadata[a.key] = a.value
		}
	}
	return e
}

func sortedMetadata(pairs ...annotation) []annotation {
	slices.SortFunc(pairs, func(a, b annotation) int { return strings.Compare(a.key, b.key) })
	return slices.CompactFunc(pairs, func(a, b annotation) bool { return a.key == b.key })
}

func typicalNotification() *notification {
	return &notification{
		involved: corev1.ObjectReference{
			Kind: "Kustomization", Namespace: "flux-system", Name: "apps", UID: "5d2a1f0e-6c64-4c05-9f2b-2f5d6b1d9b1e",
			APIVersion: "kustomize.toolkit.fluxcd.io/v1", ResourceVersion: "183746",
		},
		reason:  "ReconciliationSucceeded",
		message: "Reconciliation finished in 1.482s, next run in 10m0s: 42 objects applied, 3 of them changed",
		metadata: sortedMetadata(
			annotation{"kustomize.toolkit.fluxcd.io/revision", "main@sha1:8c3c7c1d2f7b0f3f6c1a3f3e0f1a2b3c4d5e6f70"},
			annotation{"event.toolkit.fluxcd.io/cluster", "production-eu-1"},
		),
		recorded: time.Date(2025, 11, 3, 17, 4, 5, 678, time.FixedZone("", 3600)),
	}
}

// Fields by reflection: one that a newer k8s.io/api adds, or that Event gets,
// is missed here.
func TestPayloadHasEveryField(t *testing.T) {
	t.Run("every field of a reference", func(t *testing.T) {
		var full corev1.ObjectReference
		for v, i := reflect.ValueOf(&full).Elem(), 0; i < v.NumField(); i++ {
			v.Field(i).SetString("value of " + v.Type().Field(i).Name)
			var alone corev1.ObjectReference
			reflect.ValueOf(&alone).Elem().Field(i).Set(v.Field(i))
			checkEncoding(t, &notification{involved: alone, related: &alone}, "", "")
		}
		checkEncoding(t, &notification{involved: full}, "", "")
		checkEncoding(t, &notification{related: &full}, "", "")
	})
	t.Run("every field of an event", func(t *testing.T) {
		n := typicalNotification()
		n.warning, n.action, n.related = true, "Apply", &corev1.ObjectReference{Kind: "Node"}
		for v, i := reflect.ValueOf(n.event("controller", "instance")), 0; i < v.NumField(); i++ {
			if v.Field(i).IsZero() {
				t.Errorf("%s is not set by this test", v.Type().Field(i).Name)
			}
		}
		checkEncoding(t, n, "controller", "instance")
	})
}

func TestPayloadLeavesOutWhatIsEmpty(t *testing.T) {
	checkEncoding(t, &notification{}, "", "")
	checkEncoding(t, &notification{related: &corev1.ObjectReference{}, metadata: []annotation{}}, "", "")
	checkEncoding(t, &notification{action: "a"}, "", "")
	checkEncoding(t, &notification{metadata: []annotation{{}}}, "c", "")
	checkEncoding(t, &notification{warning: true}, "", "i")
}

func TestPayloadEscapesAsEncodingJSON(t *testing.T) {
	everywhere := func(t *testing.T, s string) {
		t.Helper()
		ref := corev1.ObjectReference{Kind: s, Namespace: s, Name: s, UID: types.UID(s), APIVersion: s, ResourceVersion: s, FieldPath: s}
		checkEncoding(t, &notification{involved: ref, related: &ref, reason: s, action: s, message: s, metadata: []annotation{{s, s}}}, s, s)
	}
	everywhere(t, "plain")
	everywhere(t, "<&>\"\\\b\f\n\r\t\x00\x1f\x7f\u2028\u2029\xff\ufffd")
	for b := range 256 { // each byte alone, first, last, twice and in the middle
		s := string([]byte{byte(b)})
		for _, text := range []string{s, s + "after", "before" + s, s + s, "before" + s + "after", "é" + s + "é"} {
			checkEncoding(t, &notification{message: text}, "", "")
		}
	}
	for name, text := range map[string]string{
		"line separators":              "a\u2027\u2028\u2029\u202ab",
		"characters of two to four":    "é…\U0001F98A",
		"U+FFFD itself":                "a\ufffdb\xef\xbf\xbd",
		"first and last characters":    "\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff",
		"beyond the last character":    "\xf4\x90\x80\x80",
		"a surrogate half":             "\xed\xa0\x80",
		"overlong":                     "\xc0\x80\xe0\x80\xaf",
		"a character that is cut":      "a\xe2\x80",
		"cut, then an escape":          "\xe2\x80\"\xf0\x9f<",
		"line separator that is cut":   "\xe2\x80\xa8\xe2\x80",
		"an escape that is no longer":  `\u003c \n \"`,
		"the end of a script in HTML":  "</script><!--",
		"escapes with text in between": "one\ntwo\tthree \"four\" five\\",
	} {
		t.Run(name, func(t *testing.T) { everywhere(t, text) })
	}
	for r := rune(0); r < 0x3000; r++ {
		text := string(r)
		if got, want := appendString(nil, text), mustMarshal(t, text); string(got) != string(want) {
			t.Errorf("%U: %s, want %s", r, got, want)
		}
	}
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPayloadMetadataIsOrderedAsEncodingJSON(t *testing.T) {
	for name, metadata := range map[string][]annotation{
		"one":                            {{"k", "v"}},
		"empty key and value":            {{"", ""}, {"k", ""}},
		"prefixes":                       {{"a", "1"}, {"a/b", "2"}, {"aa", "3"}},
		"sorted as bytes, not as UTF-16": {{"\uffff", "1"}, {"\U00010000", "2"}},
		"sorted before escapes":          {{"\x01", "1"}, {"!", "2"}, {"<", "3"}, {"=", "4"}, {"\\", "5"}, {"]", "6"}, {"\u2028", "7"}},
		"equal after repair":             {{"k\xfe", "1"}, {"k\xff", "2"}},
		"equal after repair, apart":      {{"k\xc0", "1"}, {"k\xe0\xa0\x80", "2"}, {"k\ufffd", "3"}, {"k\xff", "4"}},
		"in reverse after repair":        {{"\xfe", "1"}, {"\xfea", "2"}, {"\xff", "3"}},
	} {
		t.Run(name, func(t *testing.T) {
			checkEncoding(t, &notification{metadata: sortedMetadata(slices.Clone(metadata)...)}, "", "")
		})
	}
}

func TestPayloadTimeIsThatOfMetav1(t *testing.T) {
	zone := time.FixedZone("east", 5*3600+45*60)
	for name, recorded := range map[string]time.Time{
		"zero":                           {},
		"zero elsewhere":                 time.Time{}.In(zone),
		"a nanosecond after zero":        time.Time{}.Add(1),
		"1970":                           time.Unix(0, 0),
		"fraction of a second":           time.Unix(1, 999_999_999),
		"before 1970, with a fraction":   time.Unix(-1, 999_999_999),
		"another zone":                   time.Date(2025, 1, 1, 2, 3, 4, 0, zone),
		"another year in that zone":      time.Date(2025, 1, 1, 0, 0, 0, 0, zone),
		"leap day":                       time.Date(2024, 2, 29, 23, 59, 59, 0, time.UTC),
		"monotonic":                      time.Now(),
		"year 0":                         time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC),
		"year -1":                        time.Date(-1, 12, 31, 23, 59, 59, 0, time.UTC),
		"year 9999":                      time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		"year 10000":                     time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC),
		"year 10000 in that zone only":   time.Date(10000, 1, 1, 0, 0, 0, 0, zone),
		"the first second of an int64":   time.Unix(math.MinInt64, 0),
		"the last second of an int64":    time.Unix(math.MaxInt64, 0),
		"the last second before zero":    time.Time{}.Add(-time.Second),
		"the last seconds that are read": time.Date(9999, 12, 31, 23, 59, 59, 999, zone),
	} {
		t.Run(name, func(t *testing.T) { checkEncoding(t, &notification{recorded: recorded}, "", "") })
	}
}

func TestPayloadNeedsNoMemoryOfItsOwn(t *testing.T) {
	n := typicalNotification()
	n.related, n.action, n.message = &n.involved, "Apply", "<\xff\u2028\x00\n>"
	buffer := n.appendJSON(nil, "controller", "instance")
	if allocs := testing.AllocsPerRun(100, func() { buffer = n.appendJSON(buffer[:0], "controller", "instance") }); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzPayloadEncoding(f *testing.F) {
	add := func(kind, apiVersion, namespace, name, uid, version, path, reason, action, message, controller, instance, k1, v1, k2, v2, k3, v3 string, pairs uint8, seconds, nanos int64, zone int16, warning, related bool) {
		f.Add(kind, apiVersion, namespace, name, uid, version, path, reason, action, message, controller, instance, k1, v1, k2, v2, k3, v3, pairs, seconds, nanos, zone, warning, related)
	}
	add("Pod", "v1", "default", "podinfo", "uid", "1", "spec.containers{app}", "Ready", "Apply", "all is well", "kubelet", "node-1", "k", "v", "a/token", "t", "z", "", 3, 1_762_189_445, 678, 60, false, true)
	add("", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", 0, -62_135_596_800, 0, 0, false, false)
	add("<", "&", ">", "\"", "\\", "\b\f", "\n\r\t", "\x00\x1f", "\x7f", "\xff\xfe\u2028 100%\u2029", "é…\U0001F98A", "\ufffd", "k\xff", "\xe2\x80", "k\xfe", "\xed\xa0\x80", "k\ufffd", "\xf4\x90\x80\x80", 3, 253_402_300_800, -1, -700, true, true)
	f.Fuzz(func(t *testing.T, kind, apiVersion, namespace, name, uid, version, path, reason, action, message, controller, instance, k1, v1, k2, v2, k3, v3 string, pairs uint8, seconds, nanos int64, zone int16, warning, related bool) {
		n := &notification{
			involved: corev1.ObjectReference{
				Kind: kind, APIVersion: apiVersion, Namespace: namespace, Name: name, UID: types.UID(uid), ResourceVersion: version, FieldPath: path,
			},
			warning: warning, reason: reason, action: action, message: message,
			metadata: sortedMetadata([]annotation{{k1, v1}, {k2, v2}, {k3, v3}}[:pairs%4]...),
			recorded: time.Unix(seconds, nanos).In(time.FixedZone("", int(zone)*60)),
		}
		if related {
			n.related = &corev1.ObjectReference{Kind: name, Name: kind, FieldPath: message, UID: types.UID(reason)}
		}
		checkEncoding(t, n, controller, instance)
	})
}

// BenchmarkPayload is the encoder beside what it replaces. The escaped message
// is the output of a failed command.
func BenchmarkPayload(b *testing.B) {
	typical, escaped := typicalNotification(), typicalNotification()
	escaped.message = strings.Repeat("error: \"<nil>\" is no name…\n\tat apps/podinfo & co.\n", 8)
	for _, bench := range []struct {
		name string
		n    *notification
	}{{"typical", typical}, {"escaped", escaped}} {
		b.Run(bench.name+"/append", func(b *testing.B) {
			b.ReportAllocs()
			var buffer []byte
			for b.Loop() {
				buffer = bench.n.appendJSON(buffer[:0], "kustomize-controller", "kustomize-controller-7d5f")
			}
			b.SetBytes(int64(len(buffer)))
		})
		b.Run(bench.name+"/json.Marshal", func(b *testing.B) {
			b.ReportAllocs()
			var body []byte
			for b.Loop() {
				body, _ = json.Marshal(bench.n.event("kustomize-controller", "kustomize-controller-7d5f"))
			}
			b.SetBytes(int64(len(body)))
		})
	}
}
