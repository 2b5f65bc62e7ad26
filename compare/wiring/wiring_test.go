package wiring_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	kuberecorder "k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"net/http"

	ours "github.com/eventrecorder/events/compare/wiring/ours"
	peer "github.com/eventrecorder/events/compare/wiring/peer"
	"github.com/eventrecorder/events/eventstest"
)

func TestCopiesDifferInTheImportPathOnly(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	const from, to = "\t\"github.com/fluxcd/pkg/runtime/events\"\n", "\t\"github.com/eventrecorder/events\"\n"
	theirs := read("peer/controller.go")
	if n := strings.Count(theirs, from); n != 1 {
		t.Fatalf("the peer's copy imports the peer %d times, want once", n)
	}
	if strings.Replace(theirs, from, to, 1) != read("ours/controller.go") {
		t.Error("the copies differ in more than the import path")
	}
}

func TestSameWiringPostsTheSameBytes(t *testing.T) {
	type reconciler interface {
		Reconcile(context.Context, client.Object)
	}
	for name, wire := range map[string]struct {
		ours, peer func(ctrl.Manager, string) (reconciler, error)
	}{
		"a recorder in a reconciler": {
			ours: func(mgr ctrl.Manager, url string) (reconciler, error) { return ours.Setup(mgr, "-events-addr="+url) },
			peer: func(mgr ctrl.Manager, url string) (reconciler, error) { return peer.Setup(mgr, "-events-addr="+url) },
		},
		"a recorder of its own type": {
			ours: func(mgr ctrl.Manager, url string) (reconciler, error) { return ours.MustSetup(mgr, url), nil },
			peer: func(mgr ctrl.Manager, url string) (reconciler, error) { return peer.MustSetup(mgr, url), nil },
		},
		"a recorder for a scheme": {
			ours: func(mgr ctrl.Manager, url string) (reconciler, error) {
				return ours.ForScheme(mgr.GetScheme(), &kuberecorder.FakeRecorder{}, quiet(), url)
			},
			peer: func(mgr ctrl.Manager, url string) (reconciler, error) {
				return peer.ForScheme(mgr.GetScheme(), &kuberecorder.FakeRecorder{}, quiet(), url)
			},
		},
		"a constructor in a variable": {
			ours: func(mgr ctrl.Manager, url string) (reconciler, error) { return ours.Again(mgr, url) },
			peer: func(mgr ctrl.Manager, url string) (reconciler, error) { return peer.Again(mgr, url) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			posted := func(wire func(ctrl.Manager, string) (reconciler, error)) []string {
				ep := eventstest.NewEndpoint()
				defer ep.Close()
				r, err := wire(newManager(t), ep.URL())
				if err != nil {
					t.Fatal(err)
				}
				r.Reconcile(t.Context(), pod())
				// Five calls, of which one records a trace.
				requests, err := ep.WaitRequests(t.Context(), 4)
				if err != nil {
					t.Fatal(err)
				}
				var bodies []string
				for _, r := range requests {
					if r.Status != http.StatusAccepted {
						t.Errorf("status %d for %s", r.Status, r.Body)
					}
					bodies = append(bodies, timestamp.ReplaceAllString(string(r.Body), `"timestamp":"-"`))
				}
				return bodies
			}
			got, want := posted(wire.ours), posted(wire.peer)
			if !slices.Equal(got, want) {
				t.Errorf("the bodies are\n%s\nand the peer's\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

var timestamp = regexp.MustCompile(`"timestamp":"[^"]*"`)

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "apps", Name: "podinfo", UID: "u-1", ResourceVersion: "7",
		Annotations: map[string]string{"event.toolkit.fluxcd.io/cluster": "staging", "other": "no"},
	}}
}

// newManager returns a manager that is never started and needs no API server.
func newManager(t *testing.T) ctrl.Manager {
	t.Helper()
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{
		Scheme:  scheme.Scheme,
		Logger:  quiet(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// quiet is a logger that shows nothing. The peer cannot be given logr.Discard():
// it asks the sink, which that one does not have.
func quiet() logr.Logger { return funcr.New(func(string, string) {}, funcr.Options{}) }

func TestMain(m *testing.M) {
	ctrl.SetLogger(quiet())
	os.Exit(m.Run())
}
