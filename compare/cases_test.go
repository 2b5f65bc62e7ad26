package main

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// call is one call of a recording method.
type call struct {
	name                      string
	object, related           runtime.Object
	annotations               map[string]string
	eventtype, reason, action string
	format                    string
	args                      []any
}

// calls are those for which this library and its peer mean to post the same.
func calls() []call {
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "apps", Name: "podinfo", UID: types.UID("6c1ee2f5-5a3f-4c83-a1a4-6b61e9b6d8f0"), ResourceVersion: "4711",
		}}
		for _, c := range change {
			c(p)
		}
		return p
	}
	typeless := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
		"metadata": map[string]any{"namespace": "flux-system", "name": "apps", "uid": "u-1", "resourceVersion": "7"},
	}}
	partial := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "flux-system", Name: "fleet"},
	}
	ref := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: "apps", Name: "podinfo", UID: "u-2",
		ResourceVersion: "9", FieldPath: "spec.containers{podinfo}",
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	normal := func(c call) call {
		if c.object == nil {
			c.object = pod()
		}
		if c.eventtype == "" {
			c.eventtype = corev1.EventTypeNormal
		}
		if c.action == "" {
			c.action = "Reconciling"
		}
		if c.reason == "" {
			c.reason = "Progressing"
		}
		if c.format == "" {
			c.format = "all is well"
		}
		return c
	}
	all := []call{
		normal(call{name: "normal"}),
		normal(call{name: "warning", eventtype: corev1.EventTypeWarning}),
		normal(call{name: "unknown type", eventtype: "Audit"}),
		normal(call{name: "type in another case", eventtype: "warning"}),
		normal(call{name: "arguments", format: "%d of %d applied, 100%% done: %v", args: []any{3, 4, []string{"a", "b"}}}),
		normal(call{name: "arguments missing", format: "%d of %d applied", args: []any{3}}),
		normal(call{name: "arguments too many", format: "applied", args: []any{3}}),

		normal(call{name: "one annotation", annotations: map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:3b2a1c"}}),
		normal(call{name: "many annotations", annotations: map[string]string{
			"z": "last", "a": "first", "m/m": "", "event.toolkit.fluxcd.io/token": "t", "": "empty key", "ключ": "значение", "a<b": "x&y",
		}}),
		normal(call{name: "no annotation in a map", annotations: map[string]string{}}),
		normal(call{name: "annotations of the object", object: pod(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"event.toolkit.fluxcd.io/cluster": "staging", "kubectl.kubernetes.io/restartedAt": "now"}
		})}),
		normal(call{
			name: "annotations of both", annotations: map[string]string{"app": "1"},
			object: pod(func(p *corev1.Pod) { p.Annotations = map[string]string{"event.toolkit.fluxcd.io/cluster": "staging"} }),
		}),
		normal(call{
			name: "annotations of both, equal", annotations: map[string]string{"event.toolkit.fluxcd.io/cluster": "staging"},
			object: pod(func(p *corev1.Pod) { p.Annotations = map[string]string{"event.toolkit.fluxcd.io/cluster": "staging"} }),
		}),
		normal(call{name: "only annotations that do not count", object: pod(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"event.toolkit.fluxcd.iox/cluster": "no", "event.toolkit.fluxcd.io": "no"}
		})}),

		normal(call{name: "unicode", reason: "Größe", action: "Überprüfen", format: "数量 ½ 🚀 e\u0301 \u200b"}),
		normal(call{name: "HTML characters", reason: "<b>", action: "a&b", format: `<script>alert("x" & 'y')</script>`}),
		normal(call{name: "line and paragraph separators", format: "a\u2028b\u2029c"}),
		normal(call{name: "control characters", format: "tab\tline\nreturn\rnul\x00escape\x1bdel\x7f back\\slash \"quote\""}),
		normal(call{name: "a message of 39,000 characters", format: strings.Repeat("ü", 39000)}),
		normal(call{name: "white space only", format: " \n "}),

		normal(call{name: "type from the scheme", object: pod()}),
		normal(call{name: "type in the object", object: typeless}),
		normal(call{name: "partial metadata", object: partial}),
		normal(call{name: "a reference", object: ref}),
		normal(call{name: "no UID, no resource version", object: pod(func(p *corev1.Pod) { p.UID, p.ResourceVersion = "", "" })}),
		normal(call{name: "names that are no DNS labels", object: pod(func(p *corev1.Pod) { p.Name = "system:serviceaccount:a/b%20" })}),

		normal(call{name: "related object", related: typeless}),
		normal(call{name: "related reference", related: ref}),
		normal(call{name: "related object without a namespace", related: node}),
		normal(call{name: "related object of an unknown type", related: &unknownType{}}),
		normal(call{name: "the object is its own relation", object: ref, related: ref}),
	}
	empty := normal(call{name: "empty reason"})
	empty.reason = ""
	all = append(all, empty)
	empty = normal(call{name: "empty message"})
	empty.format = ""
	all = append(all, empty)
	empty = normal(call{name: "empty type"})
	empty.eventtype = ""
	return append(all, empty)
}

// unknownType is in no scheme.
type unknownType struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

func (u *unknownType) DeepCopyObject() runtime.Object { c := *u; return &c }
