package events

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The short way and the API server's own rule agree on every key.
func FuzzAnnotationKey(f *testing.F) {
	long := strings.Repeat("x", 63)
	parts := []string{"", "a", "A", "0", "-", ".", "/", "_", " ", "ü", "\xff", "\n", "a.b", "a-b", "A.b", "a_b", "a..b", "a-.b", "a/", "/a", "a/b", "a/b/c", "a./b", "a/-b",
		"example.com/a", "EXAMPLE.com/A_b", "example.com/", long, long + "x", long + "/" + long, long + "x/a", strings.Repeat("a.", 126) + "a/b", strings.Repeat("a.", 127) + "a/b"}
	for _, a := range parts {
		for _, b := range parts {
			f.Add(a + b)
		}
	}
	f.Fuzz(func(t *testing.T, key string) {
		if got, want := isAnnotationKey(key), len(validation.IsQualifiedName(strings.ToLower(key))) == 0; got != want {
			t.Errorf("%q: %v, want %v", key, got, want)
		}
	})
}
