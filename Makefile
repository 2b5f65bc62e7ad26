# What .ci/run runs, one target for each step. `make help` lists them.

GO ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

# The newest releases that the tests also run against; go.mod names the oldest.
NEWEST_CONTROLLER_RUNTIME := v0.25
NEWEST_KUBERNETES := v0.37

FUZZTIME ?= 20s
MODULES := . compare compare/wiring e2e

.DEFAULT_GOAL := check
.PHONY: help check fmt vet staticcheck tidy test race newest fuzz cover bench compare-test compare e2e docs alerts actionlint

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

check: fmt vet staticcheck tidy test ## the quick part, before each commit: about a minute, far more with cold caches

fmt: ## fails if a Go file is not formatted
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted:"; echo "$$files"; exit 1; fi

vet: ## go vet, in all modules
	@for m in $(MODULES); do echo "vet $$m"; (cd $$m && $(GO) vet ./...) || exit 1; done

staticcheck: ## staticcheck, in all modules
	@for m in $(MODULES); do echo "staticcheck $$m"; (cd $$m && $(GO) run $(STATICCHECK) ./...) || exit 1; done

tidy: ## fails if a go.mod or go.sum is not tidy
	@for m in $(MODULES) e2e/assets; do echo "tidy $$m"; (cd $$m && $(GO) mod tidy -diff) || exit 1; done

test: ## the tests of the main module
	$(GO) test ./...

race: ## the same, with the race detector and in random order
	$(GO) test -race -shuffle=on ./...

# Without touching go.mod.
newest: ## the same, with the newest controller-runtime and Kubernetes modules
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cp go.mod go.sum "$$dir" && \
	$(GO) get -modfile="$$dir/go.mod" sigs.k8s.io/controller-runtime@$(NEWEST_CONTROLLER_RUNTIME) \
		k8s.io/api@$(NEWEST_KUBERNETES) k8s.io/apimachinery@$(NEWEST_KUBERNETES) k8s.io/client-go@$(NEWEST_KUBERNETES) && \
	$(GO) mod tidy -modfile="$$dir/go.mod" && \
	$(GO) list -modfile="$$dir/go.mod" -m sigs.k8s.io/controller-runtime k8s.io/client-go && \
	$(GO) vet -modfile="$$dir/go.mod" -tags newest ./... && \
	$(GO) test -modfile="$$dir/go.mod" -tags newest -count=1 ./...

fuzz: ## fuzzes each target for FUZZTIME (20s)
	GO="$(GO)" .ci/fuzz $(FUZZTIME)

cover: ## shows how much of the package its tests cover
	$(GO) test -coverprofile=cover.out . && $(GO) tool cover -func=cover.out | tail -n 1

bench: ## the benchmarks, ten times each
	$(GO) test -run '^$$' -bench . -count 10 .

compare-test: ## the tests of the comparison with other recorders
	cd compare && $(GO) test ./...
	cd compare/wiring && $(GO) test ./...

compare: ## measures this recorder and others, for the table in compare/README.md
	cd compare && $(GO) run . -write README.md

# KUBEBUILDER_ASSETS may name an API server; otherwise one is built, once.
e2e: ## the tests against a real API server (the first run builds it: minutes)
	cd e2e && dir="$$(bash assets/build.sh)" && KUBEBUILDER_ASSETS="$$dir" $(GO) test -count=1 -race ./...

docs: ## the alerts, the dashboard and operations.md against the recorder (needs promtool)
	GO="$(GO)" bash docs/check.sh

# Without the variable, the test that needs Prometheus is skipped.
alerts: ## the alerts in a real Prometheus, in an outage (needs prometheus)
	EVENTS_REQUIRE_PROMETHEUS=1 $(GO) test -count=1 -timeout 3m -v ./docs/alertstest

# Without the checkers that a machine may have or not.
actionlint: ## checks the workflows in .github
	$(GO) run $(ACTIONLINT) -shellcheck= -pyflakes= .github/workflows/*.yaml
