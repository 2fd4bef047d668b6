.PHONY: help short check test google race lint types settings digests bench frames fuzz demo explore simulate scale scale-keys chaos chaos-keys upgrade processes release mutants

# Its cache names files by their paths: one for each checkout.
GOLANGCI := GOLANGCI_LINT_CACHE=$(CURDIR)/bin/lint go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.0
FUZZTIME ?= 30000x
SEEDS ?= 50000
DEPTH ?= 7
ONWARD ?= 4
KEYS ?= 2m
UPGRADE ?= 1m
PACKAGES ?= ./...

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile

# What changes with a rule: the rules, the delivery that applies them, the documents, a worker as users see it, and the
# pages. It leaves out what only other changes break: programs, console, locks, clients and the long proofs.
short: ## the tests for a change of a rule, in a minute
	go vet ./lease/... ./internal/delivery ./repo ./worker ./docs
	go test ./lease/... ./internal/delivery ./repo ./worker ./docs

check: ## everything that CI runs
	bash .ci/run

test: ## all tests that need only Go
	go test ./...

# google runs the suites of the stores and the worker on Google's Firestore emulator too.
google: ## the suites of the stores and the worker on Google's emulator
	.ci/google-emulator go test -count=1 ./emulator/firestore ./repo/... ./worker/... ./cmd/worker/...

race: ## all tests with the race detector, shuffled
	go test -race -shuffle=on -count=1 -timeout 40m $(SHORT) $(PACKAGES)

lint: ## formatting, vet, go.mod and the linter
	@unformatted=$$(gofmt -l .) && echo "$$unformatted" && test -z "$$unformatted"
	go vet ./...
	GOOS=darwin go vet ./...
	go mod tidy -diff
	$(GOLANGCI) run ./...

# types checks the JSDoc types of the browser's modules, and writes locks.d.ts.
TSC := npx -y -p typescript@5.9.3 tsc --allowJs --strict --target es2022 --lib es2022,dom,dom.iterable
types: ## check the types of the JavaScript, and write locks.d.ts
	$(TSC) --noEmit --checkJs locks/document/server/web/*.js cmd/internal/console/assets/*.js
	$(TSC) --declaration --emitDeclarationOnly --outDir bin/types locks/document/server/web/locks.js
	cp bin/types/locks.d.ts locks/document/server/web/

# settings writes what Terraform makes of the module's settings: testdata/settings.json, the
# files of deploy/monitoring for gcloud, and the table of deploy/terraform/README.md.
settings: ## write the files that Terraform's settings decide
	REQUIRE_TERRAFORM=1 go test -count=1 ./deploy/terraform -update

# digests adds to each image of the builds' steps that has only a version what its registry answers.
digests: ## pin the images of the builds by digest
	@sed -n 's/^ *name: \([^@$$]*:[^@]*\)$$/\1/p' cloudbuild.yaml deploy/cloudbuild-release.yaml | sort -u | while read -r image; do \
	  digest=$$(go run github.com/google/go-containerregistry/cmd/crane@v0.20.6 digest "$$image" </dev/null) || exit 1; \
	  sed -i.orig "s|name: $$image$$|&@$$digest|" cloudbuild.yaml deploy/cloudbuild-release.yaml; \
	done && rm -f cloudbuild.yaml.orig deploy/cloudbuild-release.yaml.orig

bench: ## the benchmarks of the worker
	go test ./worker ./cmd/worker/... -run '^$$' -bench . -benchtime 3x

# fuzz gives each fuzz target FUZZTIME executions: with a time, go test at times
# reports its own deadline as a failure of the target.
fuzz: ## all fuzz targets (FUZZTIME)
	@grep -r --include='*_test.go' -o '^func Fuzz[A-Za-z0-9]*' . | sed 's|/[^/]*:func | |' | sort | \
	while read -r pkg target; do \
	  go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -parallel 4 $$pkg </dev/null || exit 1; \
	done

demo: ## the demo of the README
	go run ./cmd/taskguard demo

# What docs/proofs.md and docs/scale.md describe, with figures.
explore: ## search interleavings of workers (DEPTH, ONWARD)
	EXPLORE_DEPTH=$(DEPTH) EXPLORE_DEVIATIONS=3 EXPLORE_ONWARD=$(ONWARD) go test -count=1 -v -timeout 60m -run '^TestSearch' ./internal/testing/proof

# The functions from the request to the store, and their limits.
frames: ## the functions from a request to the store, and their limits
	go test -count=1 -v -run '^TestFrames$$' ./worker

simulate: ## workers simulated from 50,000 seeds (SEEDS)
	cd internal/testing/proof && SIMULATE_SEEDS=$(SEEDS) go test -count=1 -timeout 30m -run '^TestSimulation'

scale: ## the worker with many analyses, with figures
	SCALE=1 go test -count=1 -v -timeout 60m -run '^TestScale$$' ./worker

# scale-keys has 1,000 tenants, one of whom has 100,000 analyses: 80,000 wait, and 20,000 are submitted.
scale-keys: ## the same with 100,000 analyses of one key
	SCALE=1 GOGC=400 go test -count=1 -v -timeout 20m -run '^TestScaleKeys$$' ./worker

chaos: ## kill real processes on Google's emulator, five minutes
	CHAOS=1 .ci/google-emulator go test -count=1 -v -timeout 30m -run '^TestChaos$$' ./cmd/worker/chaos
	$(MAKE) --no-print-directory chaos-keys KEYS=8s

chaos-keys: ## kill workers while analyses wait for slots of keys
	CHAOS_KEYS=$(KEYS) go test -count=1 -v -timeout 15m -run '^TestChaosKeys$$' ./cmd/worker/chaos

# upgrade needs the version before this one in the clone, or in its origin.
upgrade: ## this version and the one before on the same documents, both directions (UPGRADE)
	UPGRADE=$(UPGRADE) go test -count=1 -v -timeout 20m -run '^TestUpgrade$$' ./cmd/worker/chaos

# Each mostly waits, for locks to expire and for retries: so they run beside one another.
processes: ## chaos, chaos-keys and upgrade at once, as CI does
	CHAOS=1 CHAOS_KEYS=$(KEYS) UPGRADE=$(UPGRADE) .ci/google-emulator \
		go test -count=1 -v -timeout 30m -parallel 8 -run '^Test(Chaos|ChaosKeys|Upgrade)$$' ./cmd/worker/chaos

release: ## build what a release publishes, in bin/release
	bash deploy/archives.sh

# Each mutant is tried on the tests of its package, or with ALL=1 on all, which takes minutes a mutant.
mutants: ## mutants of a package, which tests must catch, outside CI (PKG=./lease, DIFF=main, ALL=1)
	go run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 unleash --timeout-coefficient 3 --output-statuses lct \
		$(if $(DIFF),--diff $(DIFF)) $(if $(ALL),--integration) $(or $(PKG),./lease)
