# make check runs what CI runs.
.PHONY: check test race lint bench fuzz demo

GOLANGCI := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.0
FUZZTIME ?= 10s

check:
	bash .ci/run

test:
	go test ./...

race:
	go test -race -shuffle=on ./...

lint:
	test -z "$$(gofmt -l .)"
	go vet ./...
	GOOS=darwin go vet ./...
	go mod tidy -diff
	$(GOLANGCI) run ./...

bench:
	go test ./repo ./cmd/worker/... -run '^$$' -bench . -benchtime 3x

# fuzz gives each fuzz target FUZZTIME.
fuzz:
	@set -e; for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; \
	done

demo:
	go run ./cmd/taskguard demo
