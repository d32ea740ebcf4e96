# Targets for people who work on Inband. `make help` lists them.

GO       ?= go
FUZZTIME ?= 20s
KILLS    ?= 200
DAY      ?= 900
ROUNDS   ?= 10

.DEFAULT_GOAL := help
.PHONY: help build demo test race check lint fuzz bench benchmarks soak tidy clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/box
	$(GO) build -o bin/box ./cmd/box

demo: ## run the demonstration
	$(GO) run ./cmd/box demo

test: ## the README's test command
	$(GO) test ./...

race: ## every test under the race detector
	$(GO) test -race -timeout 20m ./...

lint: ## gofmt, go vet, staticcheck, a tidy go.mod, govulncheck where its data can be had
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "gofmt would change:"; echo "$$bad"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags failpoint ./...
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff
	@if out=$$($(GO) tool govulncheck ./... 2>&1); then echo "govulncheck: nothing known"; \
	elif echo "$$out" | grep -qE 'no such host|connection refused|dial tcp|i/o timeout|Forbidden|proxyconnect'; then echo "govulncheck: not run, its database cannot be reached from here"; \
	else echo "$$out"; exit 1; fi

fuzz: ## every fuzz target for FUZZTIME
	@GO="$(GO)" FUZZTIME="$(FUZZTIME)" ./tests/fuzz.sh

check: lint race ## what CI runs, with short fuzzing
	$(MAKE) fuzz FUZZTIME=5s

bench: ## the bars of the design, one line each (bar NAME FIGURE TARGET ok|short), and what the rest costs
	$(GO) test -run '^$$' -bench Bars ./harvester
	$(GO) test -run '^$$' -bench Bars ./exec/command
	$(GO) test -run '^$$' -bench Bars ./exec/proc
	$(GO) test -run '^$$' -bench Bars ./service/journal/sqlite
	$(GO) test -run '^$$' -bench 'Bars|Chat|Crowd' ./tests
	$(GO) test -run '^$$' -bench 'Echo|Outbox|Raise' ./service/threads
	$(GO) test -run '^$$' -bench Due ./service/timers
	$(GO) test -run '^$$' -bench 'Bars|Start|Heartbeat|Commit' ./service/plane
	$(GO) test -run '^$$' -bench Decide ./service/access
	$(GO) test -run '^$$' -bench Cost ./service/journal/notary

benchmarks: ## every benchmark by itself
	$(GO) test -run '^$$' -bench . ./...

soak: ## the long proofs: KILLS kills of a gateway, and of a plane's gateway and workers, a day of chat in DAY rounds, 100,000 hostile results, each rule taken away, fuzzing
	INBAND_KILLS=$(KILLS) $(GO) test -count 1 -v -timeout 60m -run '^TestKill$$' ./tests
	INBAND_HISTORY=$(ROUNDS) $(GO) test -count 1 -v -timeout 60m -run '^TestPlaneHistory$$' ./tests
	INBAND_DAY=$(DAY) $(GO) test -count 1 -v -timeout 60m -run '^TestDay$$' ./tests
	INBAND_PLANE_KILLS=$(KILLS) $(GO) test -count 1 -v -timeout 60m -run '^TestPlaneKill$$' ./tests
	$(GO) test -tags failpoint -count 1 -v -timeout 60m -run '^TestKill' ./service/journal/sqlite -kills $(KILLS)
	$(GO) test -count 1 -v -timeout 60m -run '^TestPowerCut' ./service/journal/sqlite -cuts $(KILLS)
	INBAND_PLANE_CUTS=100 $(GO) test -count 1 -v -timeout 60m -run '^TestPlanePowerCut$$' ./tests
	$(GO) test -tags failpoint -count 1 -v -timeout 60m -run '^TestKill' ./service/journal/notary -kills $(KILLS)
	$(GO) test -tags failpoint -count 1 -v -timeout 60m -run '^TestKill' ./service/artifacts -kills $(KILLS)
	INBAND_RENDERINGS=100000 $(GO) test -count 1 -v -timeout 60m -run '^TestNothingRenderedIsAnOrder$$' ./envelope
	INBAND_CHECK=all $(GO) test -count 1 -v -timeout 60m -run '^TestStepKeepsTheLaws$$' ./service/plane
	INBAND_DAYS=6 $(GO) test -count 1 -v -timeout 60m -run '^TestDaysOfHeartbeats$$' ./service/plane
	INBAND_MUTATIONS=all $(GO) test -count 1 -v -timeout 60m -run '^TestEachRuleDecidesSomeCase$$' ./tests
	$(MAKE) fuzz FUZZTIME=60s

tidy: ## bring go.mod and the formatting in order
	$(GO) mod tidy
	gofmt -w $$(git ls-files '*.go')

clean: ## remove what was built
	rm -rf bin dist
