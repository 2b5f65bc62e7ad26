#!/usr/bin/env bash
# Prints the directory that holds kube-apiserver and etcd for envtest, and
# nothing else on stdout. If KUBEBUILDER_ASSETS is set and holds both, that is
# the one; otherwise they are built, once per version, in the user's cache
# directory. The versions are those in go.mod, next to this file.
set -euo pipefail

exec 3>&1 1>&2 # stdout is for the answer alone

if [[ -n "${KUBEBUILDER_ASSETS:-}" ]]; then
	if [[ -x "$KUBEBUILDER_ASSETS/kube-apiserver" && -x "$KUBEBUILDER_ASSETS/etcd" ]]; then
		echo "$KUBEBUILDER_ASSETS" >&3
		exit
	fi
	echo "build.sh: KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS lacks kube-apiserver or etcd: building them"
fi

cd "$(dirname "${BASH_SOURCE[0]}")"
# For this machine, from this go.mod alone, whatever the caller's settings.
export CGO_ENABLED=0 GOWORK=off GOOS= GOARCH=
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
dir=${XDG_CACHE_HOME:-$HOME/.cache}/eventrecorder-events/kubernetes-$version

# build NAME PACKAGE: builds to a temporary name, then renames, so that an
# interrupted build leaves no half-made binary and parallel ones do no harm.
build() {
	[[ -x "$dir/$1" ]] && return
	[[ -n "${tmp:-}" ]] || tmp=$(mktemp -d "$dir/.build.XXXXXX")
	echo "build.sh: building $1 for Kubernetes $version, once (minutes the first time)"
	# Without gitVersion the server reports v0.0.0.
	go build -mod=readonly -o "$tmp/$1" \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" "$2"
	mv -f "$tmp/$1" "$dir/$1"
}

mkdir -p "$dir"
trap 'rm -rf "${tmp:-}"' EXIT
build etcd go.etcd.io/etcd/server/v3
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver

echo "$dir" >&3
