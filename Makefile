# `make help` lists the targets. `make test` is the one command for a fresh machine; `make check`
# is what else CI runs.

GOLANGCI_VERSION  := v2.15.0
GOTESTSUM_VERSION := v1.13.0

# The version is part of the folder, so an older binary is never used by mistake.
LINT_DIR  := $(HOME)/.cache/watermill-inbox/bin/golangci-lint-$(GOLANGCI_VERSION)
LINT      := $(LINT_DIR)/golangci-lint
GOTESTSUM := go run gotest.tools/gotestsum@$(GOTESTSUM_VERSION)

# Every module of the repository: `./...` never enters a nested one, nor a folder that begins
# with an underscore.
MODULES  := $(sort $(patsubst %/,%,$(dir $(wildcard go.mod */go.mod */*/go.mod))))
# Those of them whose tests run with the root's; their results are not in TEST_JSON.
NESTED   := tests/wrappers
EXAMPLES := quickstart pgx sqlc gorm cqrs outbox payments two-phase

# The limit of one package's tests, and the file for what ran.
TEST_TIMEOUT := 30m
TEST_JSON    := build/test.json

# What the race detector need not see twice: the columns of PostgreSQL again, with a pooler in front of the server.
RACE_SKIP := ^TestH2_ThroughPooler$$

# The order is from fast to slow, so that a small mistake is told soon.
CHECKS := fmt-check tidy-check readme-check vet lint examples race scenarios

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help test test-long race services services-stop demo examples mutants scenarios bench \
	fmt fmt-check vet lint lint-install tidy-check readme readme-check check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: services ## Run all tests once, on servers that are found or started; sizes at a tenth
	$(GOTESTSUM) --format pkgname --jsonfile $(TEST_JSON) -- -count=1 -timeout $(TEST_TIMEOUT) ./...
	@for m in $(NESTED); do echo "go test in $$m"; go test -C $$m -count=1 -timeout $(TEST_TIMEOUT) ./... || exit 1; done

test-long: ## Run all tests in full size, then the mutants; takes long
	INBOX_TEST_SCALE=1 $(MAKE) test TEST_TIMEOUT=120m TEST_JSON=build/test-long.json
	$(MAKE) mutants

race: services ## Run all tests with the race detector; needs a C compiler
	@command -v $${CC:-gcc} >/dev/null || command -v cc >/dev/null || \
		{ echo "the race detector needs a C compiler: apt-get install gcc libc6-dev" >&2; exit 1; }
	CGO_ENABLED=1 $(GOTESTSUM) --format pkgname --jsonfile build/race.json -- -race -count=1 -timeout $(TEST_TIMEOUT) -skip '$(RACE_SKIP)' ./...
	@for m in $(NESTED); do echo "go test -race in $$m"; CGO_ENABLED=1 go test -C $$m -race -count=1 -timeout $(TEST_TIMEOUT) ./... || exit 1; done

services: ## Find or start the servers that the tests need, and print their versions
	@mkdir -p build
	@go run ./tests/services/start

services-stop: ## Stop the servers that were started, and keep their data
	@go run ./tests/services/start -stop

demo: ## Run the quickstart: 100 orders, three deliveries each, one SIGKILL; needs only Go
	@go run -C _examples ./quickstart

examples: ## Run each example by name
	@url=$$(go run ./tests/services/start -address PostgreSQL) || exit 1; \
	for name in $(EXAMPLES); do \
		echo "== $$name"; \
		DATABASE_URL="$$url" go run -C _examples ./$$name || exit 1; \
	done; \
	echo "== payments -postgres"; \
	DATABASE_URL="$$url" go run -C _examples ./payments -postgres

mutants: services ## Take out each protection in turn: exactly its test must fail
	go run ./tests/mutants

scenarios: | $(TEST_JSON) ## Print scenario by database by test; fails on an empty cell
	go run ./tests/scenarios $(TEST_JSON)

$(TEST_JSON):
	$(MAKE) test

bench: services ## Measure against the bare transaction and the textbook algorithm
	go run ./tests/bench

fmt: lint-install ## Format all modules
	@for m in $(MODULES); do (cd $$m && $(LINT) fmt -c $(CURDIR)/.golangci.yml) || exit 1; done

fmt-check: lint-install ## Show what fmt would change; fails if there is something
	@for m in $(MODULES); do (cd $$m && $(LINT) fmt --diff -c $(CURDIR)/.golangci.yml) || exit 1; done

vet: ## Run go vet in all modules
	@for m in $(MODULES); do echo "go vet in $$m"; go vet -C $$m ./... || exit 1; done

lint: lint-install ## Run the linters of .golangci.yml in all modules
	@for m in $(MODULES); do echo "golangci-lint in $$m"; (cd $$m && $(LINT) run --allow-parallel-runners -c $(CURDIR)/.golangci.yml ./...) || exit 1; done

lint-install: ## Build golangci-lint from source unless this version is there; takes minutes
	@test -x $(LINT) || { echo "building golangci-lint $(GOLANGCI_VERSION), once"; \
		GOBIN=$(LINT_DIR) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION); }

tidy-check: ## Fail if go mod tidy would change a module
	@for m in $(MODULES); do echo "go mod tidy in $$m"; go -C $$m mod tidy -diff || exit 1; done

readme: ## Write the generated part of README.md, from what `make test` ran
	go run ./tests/readme

readme-check: ## Fail if the generated part of README.md names other drivers than go.mod
	go run ./tests/readme -check

check: ## What CI runs after the tests: format, vet, lint, race, examples, tidy, scenarios
	@for step in $(CHECKS); do \
		echo "== make $$step"; start=$$(date +%s); \
		$(MAKE) --no-print-directory $$step || { echo "== make $$step: FAILED after $$(($$(date +%s) - start)) s" >&2; exit 1; }; \
		echo "== make $$step: $$(($$(date +%s) - start)) s"; \
	done

clean: ## Remove build/ and cached test results; servers and their data stay
	rm -rf build
	go clean -testcache
