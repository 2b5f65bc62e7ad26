package e2e

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/eventrecorder/events"
)

func TestTheRightsInTheREADMEAreEnoughForBothAPIs(t *testing.T) {
	rights := rightsInREADME(t)
	for _, api := range bothAPIs {
		t.Run(api.name, func(t *testing.T) {
			namespace := newNamespace(t)
			user := newUser(t, namespace)
			grant(t, rights, namespace, user)
			stored := make(chan struct{})
			r := start(t, setup{
				api:       api,
				user:      user.Config(),
				namespace: namespace,
				record: func(ctx context.Context, recorder *events.EventRecorder, object client.Object) {
					recorder.Event(object, corev1.EventTypeNormal, "Testing", "said twice")
					select {
					case <-stored:
					case <-ctx.Done():
					}
					recorder.Event(object, corev1.EventTypeNormal, "Testing", "said twice")
				},
			})
			newConfigMap(t, namespace, "recorded")
			// The first is created, the second is a patch of the first.
			r.spy.wait(r.ctx, t, 1, api.writes(namespace, http.MethodPost))
			close(stored)
			r.spy.wait(r.ctx, t, 1, api.writes(namespace, http.MethodPatch))
			refused, _ := r.spy.matching(func(a answer) bool { return a.status >= 400 })
			if len(refused) > 0 {
				t.Errorf("the API server has refused: %v", refused)
			}
			storedEvent(t, namespace, "recorded")
			r.notified(1)
		})
	}
}

func TestWithoutAnyRightsTheNotificationStillGoesOut(t *testing.T) {
	for _, api := range bothAPIs {
		t.Run(api.name, func(t *testing.T) {
			namespace := newNamespace(t)
			r := start(t, setup{
				api:       api,
				user:      newUser(t, namespace).Config(),
				namespace: namespace,
				record: func(_ context.Context, recorder *events.EventRecorder, object client.Object) {
					recorder.Event(object, corev1.EventTypeNormal, "Testing", "nobody may say this")
				},
			})
			newConfigMap(t, namespace, "recorded")
			r.spy.wait(r.ctx, t, 1, api.writes(namespace, http.MethodPost, http.StatusForbidden))
			if stored := storedEvents(t, namespace, "recorded"); len(stored) != 0 {
				t.Errorf("stored: %v", stored)
			}
			if sent := r.notified(1)[0]; sent.Message != "nobody may say this" {
				t.Errorf("notification: %+v", sent)
			}
		})
	}
}

// user is who a controller is for the API server.
type user struct {
	*envtest.AuthenticatedUser
	name string
}

// newUser makes a user who may do nothing but what every user may.
func newUser(t *testing.T, namespace string) user {
	t.Helper()
	name := "controller-of-" + namespace
	u, err := controlPlane.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return user{u, name}
}

const (
	rightsBegin = "<!-- rbac:begin -->"
	rightsEnd   = "<!-- rbac:end -->"
)

// rightsInREADME returns the Roles and ClusterRoles that the README asks for.
func rightsInREADME(t *testing.T) []client.Object {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), rightsBegin)
	section, _, ended := strings.Cut(section, rightsEnd)
	_, section, begun := strings.Cut(section, "```yaml\n")
	section, _, fenced := strings.Cut(section, "```")
	if !begun || !ended || !fenced {
		t.Fatalf("README.md has no yaml block between %s and %s", rightsBegin, rightsEnd)
	}

	var rights []client.Object
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range strings.SplitSeq(section, "\n---\n") {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("README.md: %v", err)
		}
		switch object := object.(type) {
		case *rbacv1.Role:
			rights = append(rights, object)
		case *rbacv1.ClusterRole:
			rights = append(rights, object)
		default:
			t.Fatalf("README.md: %T among the rights", object)
		}
	}
	return rights
}

// grant gives the user these rights, a Role in the namespace, and waits until
// the API server knows it.
func grant(t *testing.T, rights []client.Object, namespace string, to user) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	api, err := client.New(adminConfig, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: to.name}}
	var rules []rbacv1.PolicyRule
	for _, right := range rights {
		var role, binding client.Object
		meta := metav1.ObjectMeta{Name: right.GetName() + "-" + namespace} // of its own
		switch right := right.(type) {
		case *rbacv1.Role:
			meta.Namespace = namespace
			role = &rbacv1.Role{ObjectMeta: meta, Rules: right.Rules}
			binding = &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}}
			rules = append(rules, right.Rules...)
		case *rbacv1.ClusterRole:
			role = &rbacv1.ClusterRole{ObjectMeta: meta, Rules: right.Rules}
			binding = &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name}}
			rules = append(rules, right.Rules...)
		}
		for _, object := range []client.Object{role, binding} {
			if err := api.Create(ctx, object); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					waitUntilAllowed(ctx, t, to, authorizationv1.ResourceAttributes{
						Namespace: namespace, Group: group, Resource: resource, Verb: verb,
					})
				}
			}
		}
	}
}

// waitUntilAllowed waits until the user may do that: the API server learns of
// bindings a moment after they are made.
func waitUntilAllowed(ctx context.Context, t *testing.T, who user, what authorizationv1.ResourceAttributes) {
	t.Helper()
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		review, err := admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: who.name, ResourceAttributes: &what},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed, err
	})
	if err != nil {
		t.Fatalf("%s may not %s %s of %q: %v", who.name, what.Verb, what.Resource, what.Group, err)
	}
}
