package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// The control plane that all tests share. Each test has a namespace of its own.
var (
	controlPlane *envtest.Environment
	adminConfig  *rest.Config
	admin        kubernetes.Interface
)

func TestMain(m *testing.M) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if timeout := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); timeout > 0 {
		// A little sooner: the timeout itself ends the process on the spot.
		ctx, stop = context.WithTimeoutCause(ctx, timeout*9/10, errors.New("the tests take too long"))
	}
	code, err := run(ctx, m)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// run starts the control plane, runs the tests and stops it, also when ctx is
// done before the tests: nothing else would end its processes.
func run(ctx context.Context, m *testing.M) (code int, err error) {
	if err := checkAssets(os.Getenv("KUBEBUILDER_ASSETS")); err != nil {
		return 1, err
	}
	// What the managers and client-go log is of no use here, and some of it
	// would come after the end of its test.
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())

	existing := false // never somebody's cluster, whatever the environment says
	controlPlane = &envtest.Environment{
		UseExistingCluster:       &existing,
		ControlPlaneStartTimeout: 2 * time.Minute,
		ControlPlaneStopTimeout:  time.Minute,
	}
	controlPlane.ControlPlane.GetAPIServer().Configure().
		// Otherwise the server looks for an address that others can reach,
		// and does not start on a machine that has none.
		Set("advertise-address", "127.0.0.1").
		Set("endpoint-reconciler-type", "none")
	defer func() { err = errors.Join(err, controlPlane.Stop()) }()
	if adminConfig, err = controlPlane.Start(); err != nil {
		return 1, err
	}
	if admin, err = kubernetes.NewForConfig(adminConfig); err != nil {
		return 1, err
	}

	before := goleak.IgnoreCurrent()
	done := make(chan int, 1)
	go func() { done <- m.Run() }()
	select {
	case code = <-done:
	case <-ctx.Done():
		return 1, context.Cause(ctx)
	}
	if code == 0 {
		// No manager, informer or recorder may be left when the control plane
		// stops. client-go keeps its idle connections.
		err = goleak.Find(before, goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"))
	}
	return code, err
}

// checkAssets says what to do about binaries that are missing.
func checkAssets(dir string) error {
	if dir == "" {
		return errors.New("KUBEBUILDER_ASSETS is not set: `make e2e` builds kube-apiserver and etcd, sets it and runs these tests")
	}
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("KUBEBUILDER_ASSETS has no %s (%w): `make e2e` without KUBEBUILDER_ASSETS builds it", name, err)
		}
	}
	return nil
}
