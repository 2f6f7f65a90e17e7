# Everything CI does is a target here. "make" alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TESTFLAGS ?= -timeout 60m
COUNT ?= 10
FUZZTIME ?= 30s

.PHONY: help
help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

.PHONY: demo
demo: ## an order service, a relay and a consumer, on this machine
	go run ./cmd/postrider demo

.PHONY: build
build: ## the binary, bin/postrider
	CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o bin/postrider ./cmd/postrider

.PHONY: servers
servers: ## install the servers the tests use (ALL=1: every PostgreSQL, MariaDB and MySQL, Patroni, buf, Apicurio Registry, Debezium and Kubernetes; ONLY=buf,apicurio: these alone)
	CGO_ENABLED=0 go run ./internal/testserver/install $(if $(ALL),-all) $(if $(ONLY),-only $(ONLY))

.PHONY: test
test: servers ## every test of every module, against real servers
	@tools/test $(TESTFLAGS)

.PHONY: matrix
matrix: ## the same on every supported PostgreSQL, and a million schedules of the simulation
	@$(MAKE) --no-print-directory servers ALL=1
	@POSTRIDER_MATRIX=1 tools/test $(TESTFLAGS) -timeout 90m
	@$(MAKE) --no-print-directory charts
	@$(MAKE) --no-print-directory peers

.PHONY: peers
peers: ## other relays beside Postrider, with few messages: the gate, not the numbers
	cd bench/peers && go test -timeout 30m ./...

.PHONY: charts
charts: ## lint and render the Helm chart and the kustomize manifests; install them in Kubernetes where it is built
	@skips=$$(mktemp); trap 'rm -f "$$skips"' EXIT; \
	(cd tools/kube && GOWORK=off POSTRIDER_SKIP_LOG=$$skips go test -timeout 30m ./...); \
	sed 's/^/!!! NOT TESTED: /' "$$skips"

.PHONY: race
race: servers ## the same under the race detector, with fewer simulations
	@POSTRIDER_SIM_SEEDS=$${POSTRIDER_SIM_SEEDS:-2000} tools/test -race $(TESTFLAGS)

.PHONY: short
short: ## the root module without any server, under a minute
	go vet ./...
	go test -short ./...

.PHONY: lint
lint: ## golangci-lint, pinned, in every module, and the prose
	@tools/lint/run
	@go test -run 'TestProse|TestLinks|TestPages' .

.PHONY: tidy
tidy: ## go mod tidy in every module, LICENSE into each, gofmt
	go run ./internal/relproxy tidy
	gofmt -l -w .

.PHONY: stranger
stranger: ## build every module as somebody who depends on it does
	go run ./internal/relproxy stranger

.PHONY: release
release: ## binaries and packages into dist/, and tags of a version (VERSION=v0.1.0)
	go run ./internal/relproxy release $(VERSION)

.PHONY: site
site: ## the documentation as a site with offline search, into dist/site
	POSTRIDER_SITE=$(CURDIR)/dist/site go test ./internal/docsite -run TestSite -count=1

.PHONY: fuzz
fuzz: ## every fuzz target for 30 s
	@FUZZTIME=$(FUZZTIME) tools/fuzz

.PHONY: bench
bench: ## Go benchmarks into bench/new.txt, for benchstat
	@mkdir -p bench
	go test -run '^$$' -bench . -benchmem -count $(COUNT) work | tee bench/new.txt
