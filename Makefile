# What .ci/run runs, one target for each step. `make check` is the quick part.

GO ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The newest releases that the tests also run against; go.mod names the oldest.
NEWEST_CONTROLLER_RUNTIME := v0.25
NEWEST_KUBERNETES := v0.37

FUZZTIME ?= 20s
MODULES := . compare compare/wiring e2e

.PHONY: check fmt vet staticcheck tidy test race newest fuzz cover bench compare-test compare e2e docs

check: fmt vet staticcheck tidy test

fmt:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted:"; echo "$$files"; exit 1; fi

vet:
	@for m in $(MODULES); do echo "vet $$m"; (cd $$m && $(GO) vet ./...) || exit 1; done

staticcheck:
	@for m in $(MODULES); do echo "staticcheck $$m"; (cd $$m && $(GO) run $(STATICCHECK) ./...) || exit 1; done

tidy:
	@for m in $(MODULES) e2e/assets; do echo "tidy $$m"; (cd $$m && $(GO) mod tidy -diff) || exit 1; done

test:
	$(GO) test ./...

race:
	$(GO) test -race -shuffle=on ./...

# The same tests with the newest dependencies, without touching go.mod.
newest:
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cp go.mod go.sum "$$dir" && \
	$(GO) get -modfile="$$dir/go.mod" sigs.k8s.io/controller-runtime@$(NEWEST_CONTROLLER_RUNTIME) \
		k8s.io/api@$(NEWEST_KUBERNETES) k8s.io/apimachinery@$(NEWEST_KUBERNETES) k8s.io/client-go@$(NEWEST_KUBERNETES) && \
	$(GO) mod tidy -modfile="$$dir/go.mod" && \
	$(GO) list -modfile="$$dir/go.mod" -m sigs.k8s.io/controller-runtime k8s.io/client-go && \
	$(GO) vet -modfile="$$dir/go.mod" -tags newest ./... && \
	$(GO) test -modfile="$$dir/go.mod" -tags newest -count=1 ./...

fuzz:
	GO="$(GO)" .ci/fuzz $(FUZZTIME)

cover:
	$(GO) test -coverprofile=cover.out . && $(GO) tool cover -func=cover.out | tail -n 1

bench:
	$(GO) test -run '^$$' -bench . -count 10 .

# The comparison with other recorders: its tests, and the measurements.
compare-test:
	cd compare && $(GO) test ./...
	cd compare/wiring && $(GO) test ./...

compare:
	cd compare && $(GO) run .

# Tests against a real API server. Builds one, once, unless KUBEBUILDER_ASSETS
# names one.
e2e:
	cd e2e && dir="$$(bash assets/build.sh)" && KUBEBUILDER_ASSETS="$$dir" $(GO) test -count=1 -race ./...

# The rules and the dashboard of docs/, against what the recorder exposes.
docs:
	GO="$(GO)" bash docs/check.sh
