package main

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// kubernetesEvents is client-go's recorder with a real broadcaster, and somebody
// who reads what it says in place of an API server.
type kubernetesEvents struct {
	record.EventRecorder
	broadcaster record.EventBroadcaster

	mu   sync.Mutex
	more sync.Cond
	seen int
}

func newKubernetesEvents() *kubernetesEvents {
	k := &kubernetesEvents{broadcaster: record.NewBroadcaster()}
	k.more.L = &k.mu
	k.broadcaster.StartEventWatcher(func(*corev1.Event) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.seen++
		k.more.Signal()
	})
	k.EventRecorder = k.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: controllerName})
	return k
}

// await waits until so many events were read, so that none is in the way of
// what is measured next, and forgets them.
func (k *kubernetesEvents) await(events int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.seen < events {
		k.more.Wait()
	}
	k.seen = 0
}

// pod is an object of the usual size.
func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "apps", Name: name, UID: types.UID("6c1ee2f5-5a3f-4c83-a1a4-6b61e9b6d8f0"), ResourceVersion: "123456",
	}}
}

// annotations are those of the usual event.
var annotations = map[string]string{
	"kustomize.toolkit.fluxcd.io/revision": "main@sha1:3b2a1c",
	"event.toolkit.fluxcd.io/cluster":      "staging",
}
