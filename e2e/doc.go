// Package e2e has no code, only tests: the library under a real manager of
// controller-runtime, against a real kube-apiserver and etcd, which listen on
// this machine's loopback interface alone.
//
//	make e2e
//
// in the root of the repository builds the two once and runs the tests. With
// KUBEBUILDER_ASSETS set to a directory that has them, those are taken.
package e2e
