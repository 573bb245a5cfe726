# The recurring tasks of this repository. `make` lists them.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

GO      ?= go
TOOL    := $(GO) tool -modfile=build/tools/go.mod
PKGS    ?= ./...
ATOLL   := $(CURDIR)/bin/atoll

# The Go tool derives the version from the commit. If git cannot read the
# repository (none, or another user's), the version is empty.
BUILDVCS = $(shell git rev-parse --verify -q HEAD >/dev/null 2>&1 && echo true || echo false)

# The program is static. With the same settings everywhere, `go run`, the tests
# and the checks share compiled packages; only build/scripts/dist uses -trimpath.
export CGO_ENABLED ?= 0

# The race detector needs a C compiler and doubles the time.
RACE         ?=
TEST_TIMEOUT ?= 20m
FUZZTIME     ?= 10s
BENCHTIME    ?= 1s
ROUNDS       ?= 200
DURATION     ?= 1h

# Tests mostly wait, so more of them run in parallel than there are processors,
# of one package and of several. The packages with the longest tests start first.
PARALLEL     ?= 6
PACKAGES     ?= $(shell expr 2 + $$(nproc 2>/dev/null || echo 2))
LONGEST      = $(if $(filter ./...,$(PKGS)),./provider/gvisor ./cmd/atoll ./internal/daemon)

# The race detector makes test binaries dynamic, but a kernel must be static to
# re-execute itself in its empty root. So tests start their kernels, and the
# command under test, from a copy of the engine. Kernels run as nobody, who may
# not be able to read this directory but must be able to read the copy. The light
# program is only for the tests that are about it.
STATIC = dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && chmod 755 "$$dir" && cp "$(ATOLL)-engine" "$$dir/atoll" && \
	cp "$(ATOLL)" "$$dir/atoll-light" && export ATOLL_KERNEL="$$dir/atoll" ATOLL_BIN="$$dir/atoll" ATOLL_LIGHT="$$dir/atoll-light" &&

# $(call gotest,FLAGS,PACKAGES) runs go test and prints a count, and what the
# skipped tests need. With AGAIN=N, up to N failed tests run once more.
gotest = $(if $(RACE),CGO_ENABLED=1) $(TOOL) gotestsum --format=pkgname-and-test-fails --format-hide-empty-pkg \
	--jsonfile="$$dir/tests.json" --post-run-command='env CGO_ENABLED=0 $(GO) run ./internal/need/count' \
	$(if $(AGAIN),--rerun-fails=1 --rerun-fails-max-failures=$(AGAIN) --packages='$(2)') \
	-- -count=1 -timeout=$(TEST_TIMEOUT) $(1) $(if $(AGAIN),,$(2))

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  %-12s %s\n", $$1, $$2 }'

.PHONY: guest
guest: ## build the program that runs inside sandboxes, which build embeds
	@GO='$(GO)' ./build/scripts/guest

.PHONY: build
build: guest ## build the static binary, bin/atoll, and the engine that it embeds, bin/atoll-engine
	@GO='$(GO)' ./build/scripts/light "$(ATOLL)-engine" "$(ATOLL)" -buildvcs=$(BUILDVCS)

.PHONY: nats
nats: ## build the server for self-hosted machines, bin/atoll-nats
	$(GO) build -buildvcs=$(BUILDVCS) -ldflags '-s -w' -o bin/atoll-nats ./cmd/atoll-nats

# Sandboxes need Linux. Elsewhere the program is a client of a daemon.
CLIENTS = darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: clients
clients: ## build the client for macOS and Windows, into bin/
	@for system in $(CLIENTS); do \
		name=bin/atoll-$${system%/*}-$${system#*/}; \
		case $$system in windows/*) name=$$name.exe ;; esac; \
		echo $$name; \
		GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) build -buildvcs=$(BUILDVCS) -ldflags '-s -w' -o $$name ./cmd/atoll || exit 1; \
	done

.PHONY: dist
dist: build ## build the release into dist/: archives, packages, SBOMs and an image: make dist PLATFORMS=linux/amd64
	GO='$(GO)' ./build/scripts/dist $(PLATFORMS)

.PHONY: first-hour
first-hour: ## install the package on a fresh Debian and run the guide's sixty steps there, as root and as a normal user (as root; needs mmdebstrap)
	@$(MAKE) --no-print-directory dist PLATFORMS=linux/$$($(GO) env GOARCH)
	@$(STATIC) ./build/scripts/first-hour "$$dir"

.PHONY: fresh
fresh: ## run the README's two commands on a fresh Debian that has only Go, git and make, as root and as a normal user (as root; needs mmdebstrap): make fresh PKGS=./sandbox
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && chmod 755 "$$dir" && GO='$(GO)' PKGS='$(PKGS)' ./build/scripts/fresh "$$dir"

.PHONY: run
run: build ## run a command in a sandbox: make run ARGS="uname -a"
	@"$(ATOLL)" run -- $(or $(ARGS),sh -c 'echo $$((6*7))')

.PHONY: test
test: check-fmt vet build ## run every check and the tests that take a few minutes; the others are in full
	@$(STATIC) $(call gotest,-short -vet=off -p=$(PACKAGES) -parallel=$(PARALLEL),$(LONGEST) $(PKGS))
	@$(GO) -C test/driver-module test ./...

# The parts of full are targets, too. The soak test runs hundreds of rounds
# only if requested.
.PHONY: full
full: ## run everything: the race detector, E2B's SDKs, a gigabyte of memory, kills at random, fuzzing, a fresh machine (two hours)
	@$(MAKE) --no-print-directory check-fmt vet clients first-hour race e2b desktop-image-e2b bridge sdk mcp docker opensandbox minio microvm cgroup2 gigabyte python js console console-test desktop-image-test frameworks fresh
	@git diff --exit-code --stat internal/server/console/dist
	@$(MAKE) --no-print-directory cluster kubernetes; code=$$?; $(MAKE) --no-print-directory cluster-down; exit $$code
	@$(MAKE) --no-print-directory cluster-test
	@$(MAKE) --no-print-directory scale
	@$(MAKE) --no-print-directory kills ROUNDS=20
	@$(MAKE) --no-print-directory soak DURATION=5m
	@$(MAKE) --no-print-directory fleet DURATION=5m
	@$(MAKE) --no-print-directory fuzz FUZZTIME=3s

.PHONY: race
race: RACE = -race
race: TEST_TIMEOUT = 40m
race: check-race build ## run the tests, the long ones too, under the race detector: make race PKGS=./driver
	@$(STATIC) $(call gotest,$(RACE) -parallel=$(PARALLEL),$(PKGS))

.PHONY: short
short: build ## run the tests, the long ones too, without the race detector: make short PKGS=./driver
	@$(STATIC) $(call gotest,-parallel=$(PARALLEL),$(PKGS))

.PHONY: script
script: build ## run the command line's scripts: make script RUN=name
	@$(STATIC) $(call gotest,'-run=TestScript$(if $(RUN),/^$(RUN)$$)',./cmd/atoll)

.PHONY: gigabyte
gigabyte: build ## pause and fork ten ways a program with a gigabyte of memory (needs 4 GiB)
	@$(STATIC) $(call gotest,-tags=gigabyte '-run=^TestGigabyte$$',./cmd/atoll)

.PHONY: soak
soak: build ## for DURATION (1h): daemons are killed and upgraded, processes stop and disks fill, while clients work
	@$(STATIC) ATOLL_SOAK_TIME=$(DURATION) $(call gotest,-timeout=0 -v '-run=^TestSoak$$',./cmd/atoll)

.PHONY: fleet
fleet: build ## for DURATION (1h): nodes and control daemons are killed and cut off, PostgreSQL too, and disks fill, while clients work (as root; needs postgresql iproute2)
	@$(STATIC) ATOLL_SOAK_TIME=$(DURATION) $(call gotest,-timeout=0 -v '-run=^TestArchipelago$$|^TestNodeFallsSilent$$',./cmd/atoll)

.PHONY: fleet-short
fleet-short: build ## each kind of fault of fleet once, in two minutes
	@$(STATIC) ATOLL_SOAK_TIME=60s $(call gotest,-timeout=10m -v '-run=^TestArchipelago$$',./cmd/atoll)

.PHONY: kills
kills: build ## kill everything at every fault point, and daemons at random while clients work, ROUNDS (200) times
	@$(STATIC) ATOLL_KILL_ROUNDS=$(ROUNDS) $(call gotest,-timeout=2h -run=Killed,./provider/gvisor)
	@$(STATIC) ATOLL_SOAK_ROUNDS=$(ROUNDS) ATOLL_SESSION_KILLS=$$((2 * $(ROUNDS))) $(call gotest,-timeout=2h '-run=DaemonIsKilled|SessionsUnderKills|Restarts',./cmd/atoll ./internal/daemon)

.PHONY: scale
scale: ## simulate 10,000 nodes with 10 million sandboxes, and the loss of a zone (minutes)
	@ATOLL_SCALE=full $(GO) test -count=1 -v -timeout=30m -run '^TestScale$$|^TestScaleOfOneImage$$' ./internal/fleet/scale

.PHONY: arch
arch: ## check imports, names, sizes, links and the list of dependencies
	$(GO) test -count=1 ./internal/testing/archtest

.PHONY: base-image
base-image: build ## build the image "base" of Debian's packages, in a sandbox (needs mmdebstrap)
	@$(STATIC) ATOLL="$$dir/atoll" ./build/images/base/build

.PHONY: desktop-image
desktop-image: build ## build the image "desktop": base with a display, a browser and what steers them, of Debian's packages
	@$(STATIC) ATOLL="$$dir/atoll" ./build/images/desktop/build

.PHONY: desktop-image-test
desktop-image-test: build ## build it in a new state directory, and use it as E2B's desktop SDKs do and in the web console (minutes)
	@cd console && npm ci --ignore-scripts --no-audit --no-fund --silent
	@$(STATIC) export ATOLL="$$dir/atoll" ATOLL_STATE_DIR="$$dir/state" && mkdir "$$dir/state" && ./build/images/desktop/build && ./build/images/desktop/check && \
		cd console && ATOLL_DESKTOP_STATE="$$dir/state" node --test test/desktop.test.mjs

.PHONY: base-image-test
base-image-test: build ## build it in a state directory of its own and try it (minutes)
	@$(STATIC) ATOLL="$$dir/atoll" ./build/images/base/check

# The additional packages that E2B's clients expect of the code interpreter.
INTERPRETER = PACKAGES=python3-matplotlib,python3-pandas$(subst $() ,,$(foreach k,$(KERNELS),$(or $(patsubst %,$(comma)%,$(kernel-$(k))),$(error KERNELS: $(k) is not one of java, r, typescript)))) ./build/images/base/build code-interpreter
comma = ,
kernel-java = default-jdk-headless
kernel-r = r-base-core
kernel-typescript = node-typescript

.PHONY: interpreter-image
interpreter-image: build ## build the image "code-interpreter": base with matplotlib and pandas, of Debian's packages; more kernels: make interpreter-image KERNELS="typescript java r"
	@$(STATIC) ATOLL="$$dir/atoll" $(INTERPRETER)

# These run the programs of E2B's SDKs in sandboxes of a newly built image,
# with a new state directory (minutes).
.PHONY: base-image-e2b interpreter-image-e2b desktop-image-e2b
base-image-e2b: E2B_IMAGE = ./build/images/base/build
base-image-e2b: E2B_RUN = TestJavaScript$$|TestPython$$
base-image-e2b: build ## build the image "base" and run the programs of E2B's SDKs on it
interpreter-image-e2b: E2B_IMAGE = $(INTERPRETER)
interpreter-image-e2b: E2B_RUN = TestInterpreter$$
interpreter-image-e2b: build ## build the image "code-interpreter" and run those of its SDKs on it, charts and images too
desktop-image-e2b: E2B_IMAGE = ./build/images/desktop/build
desktop-image-e2b: E2B_RUN = TestDesktop$$
desktop-image-e2b: build ## build the image "desktop" and run the programs of E2B's desktop SDKs on it
base-image-e2b interpreter-image-e2b desktop-image-e2b:
	@$(STATIC) export ATOLL="$$dir/atoll" ATOLL_STATE_DIR="$$dir/state" && mkdir "$$dir/state" && $(E2B_IMAGE) && \
		ATOLL_E2B_STATE="$$dir/state" $(call gotest,-timeout=1h -parallel=1 -tags=e2b '-run=$(E2B_RUN)',./test/e2b)

# Keeps every processor busy as long as the shell lives.
LOAD = loads=; trap 'kill $$loads' EXIT; for i in $$(seq $$(nproc)); do \
	(while kill -0 $$$$; do i=0; while [ $$i -lt 100000 ]; do i=$$((i + 1)); done; done 2>/dev/null) & loads="$$loads $$!"; done;

.PHONY: e2b
e2b: build ## run programs that use E2B's SDKs (installs them with npm and pip); many times under load: make e2b REPEAT=20
	@$(STATIC) ( $(if $(REPEAT),$(LOAD)) for i in $$(seq $(or $(REPEAT),1)); do \
		$(if $(REPEAT),echo "$$i of $(REPEAT)" >&2 &&) $(call gotest,-tags=e2b $(ARGS),./test/e2b) || exit 1; done )

.PHONY: bridge
bridge: build ## run programs and agents that use OpenAI's clients of Cloudflare's bridge (installs them with npm and pip)
	@$(STATIC) $(call gotest,-tags=bridge,./test/bridge)

.PHONY: sdk
sdk: build ## run the official SDKs of hosted services against their fakes (installs them with pip)
	@$(STATIC) $(call gotest,-tags=sdk '-run=^TestSDK$$',./provider/superserve ./provider/boxlite ./provider/islo ./provider/daytona ./provider/vercel ./provider/runloop ./provider/opensandbox ./provider/blaxel ./provider/modal ./provider/microsandbox)

.PHONY: python
python: build ## check, test and build the Python packages (installs what they need with pip): make python ARGS="-k run"
	@$(STATIC) ./build/scripts/python "$$dir/atoll" $(ARGS)

.PHONY: python-generate
python-generate: ## write the Python client's models and its synchronous half anew
	./build/scripts/python generate

.PHONY: js
js: build ## check, test and pack the JavaScript packages (installs what they need with npm)
	@$(STATIC) ./build/scripts/js "$$dir/atoll"

.PHONY: js-generate
js-generate: ## write the types of the JavaScript client anew
	cd integrations/js && npm ci --ignore-scripts --silent && npm run --silent generate

.PHONY: console
console: ## check and build the web console, which the program embeds (installs what it needs with npm)
	cd console && npm ci --ignore-scripts --no-audit --no-fund --silent && npm run --silent generate && npm run --silent check && npm run --silent build

# SHOTS names a directory for screenshots of all pages.
.PHONY: console-test
console-test: build ## use the web console in a browser, with the real binary (needs chromium; installs the rest with npm)
	@cd console && npm ci --ignore-scripts --no-audit --no-fund --silent
	@$(STATIC) cd console && timeout 900 npm --silent test # a test that failed may have left a connection open

.PHONY: frameworks frameworks-python frameworks-js
frameworks: frameworks-python frameworks-js ## run agents of frameworks whose models are scripts against the real binary (installs them)
frameworks-python: build
	@$(STATIC) ./build/scripts/frameworks "$$dir/atoll" $(ARGS)
frameworks-js: build
	@$(STATIC) ./build/scripts/frameworks-js "$$dir/atoll"

.PHONY: mcp
mcp: build ## run the official conformance runner of MCP (installs it with npm)
	@$(STATIC) $(call gotest,-tags=mcp,./test/mcp)

.PHONY: docker
docker: build ## run the tests of provider/docker with a Docker daemon that they start (as root; needs docker.io and busybox-static)
	@$(STATIC) $(call gotest,-tags=docker,./provider/docker)

.PHONY: opensandbox
opensandbox: build ## run a real OpenSandbox server (installs it with pip) on a Docker daemon of its own, and provider/opensandbox with it (as root; needs docker.io, busybox-static and iproute2)
	@$(STATIC) $(call gotest,-tags=docker '-run=^TestLive',./provider/opensandbox)

.PHONY: minio
minio: build ## run the tests of blob stores and of nodes that share images with MinIO, built from the Go module proxy (two minutes once)
	@$(STATIC) ATOLL_S3=minio $(call gotest,-parallel=$(PARALLEL),./internal/blob ./internal/snapshotstore/archive ./internal/workspace ./internal/bucket)
	@$(STATIC) ATOLL_S3=minio $(call gotest,'-run=^TestNodesShareImagesWithLimitedKey$$',./internal/daemon)

.PHONY: kubernetes
kubernetes: TEST_TIMEOUT = 45m
kubernetes: build ## run the tests of provider/kubernetes on the node of make cluster, or on the cluster of ATOLL_KUBECONFIG, where ATOLL_KUBERNETES_IMAGE is an image with Python (a quarter of an hour)
	@$(STATIC) ATOLL_CLUSTER="$${ATOLL_CLUSTER:-/var/tmp/atoll-cluster}" $(call gotest,-tags=kubernetes '-run=^TestLive' -parallel=$(PARALLEL),./provider/kubernetes)

.PHONY: microvm
microvm: build ## run the tests of provider/microvm with emulated virtual machines (needs qemu-system-x86, busybox-static and a kernel: /boot, or ATOLL_MICROVM_KERNEL; half an hour)
	@$(STATIC) ATOLL_MICROVM_ACCEL="$${ATOLL_MICROVM_ACCEL:-tcg}" $(call gotest,-tags=microvm -parallel=$(PARALLEL),./provider/microvm)
	@$(STATIC) ATOLL_MICROVM_ACCEL="$${ATOLL_MICROVM_ACCEL:-tcg}" $(call gotest,-tags=microvm -run=TestConformanceMicrovm,./internal/gateway)

# A machine with control groups of version 1 emulates one with version 2.
.PHONY: cgroup2
cgroup2: RUN = MemoryOfTheKernel|FillMemory|AtLimit|WhileFull|Loan|MakesRoom|BarrenSandbox|ResizeBelowUse
cgroup2: build ## run the tests of gVisor's memory limit on control groups of version 2, in an emulated machine (as root; needs qemu-system-x86, mmdebstrap and a kernel as microvm does; ten minutes): make cgroup2 RUN=WhileFull
	@$(STATIC) $(GO) test -c -o "$$dir/tests" ./provider/gvisor && ./build/scripts/cgroup2 "$$dir" "$$dir/tests" "$$dir/atoll" -test.v -test.timeout=40m '-test.run=$(RUN)'

# The state of the cluster. Its programs are in ATOLL_CLUSTER_CACHE.
CLUSTER = /var/tmp/atoll-cluster

.PHONY: cluster cluster-down cluster-test
cluster: ## start a Kubernetes node, built from the Go module proxy (as root; needs runc containernetworking-plugins conntrack ipset; a quarter of an hour once)
	@GO='$(GO)' ./build/scripts/cluster up "$(CLUSTER)"
cluster-down: ## end it and remove what it made
	@./build/scripts/cluster down "$(CLUSTER)"
cluster-test: build ## lint the Helm chart, and install, use and remove it on a node of its own
	@$(STATIC) GO='$(GO)' ./build/scripts/cluster-test "$$dir/atoll"

.PHONY: fuzz
fuzz: ## fuzz each target for FUZZTIME (10s)
	./build/scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: build ## compare with Docker, runc and bubblewrap, into docs/BENCHMARKS.md: make bench ARGS="-rounds 5"
	@$(STATIC) $(GO) -C build/bench build -o "$$dir/bench" . && \
		"$$dir/bench" -atoll "$$dir/atoll-light" -engine "$$dir/atoll" -doc docs/BENCHMARKS.md $(ARGS)

.PHONY: gobench
gobench: build ## run the Go benchmarks: make gobench PKGS=./provider/gvisor
	@$(STATIC) $(GO) test -run '^$$' -bench . -benchmem -benchtime=$(BENCHTIME) -timeout=$(TEST_TIMEOUT) $(PKGS)

.PHONY: apifuzz
apifuzz: build ## send random requests to a real daemon for about 80 seconds (fetches schemathesis; needs python3-venv)
	@$(STATIC) ./build/scripts/apifuzz "$$dir/atoll"

.PHONY: vet
vet: ## run go vet
	$(GO) vet $(PKGS)
	$(GO) vet -tags light ./cmd/atoll
	$(GO) -C build/bench vet ./...
	@$(GO) -C test/driver-module vet ./...

.PHONY: lint
lint: ## run golangci-lint (the first run builds it: minutes)
	$(TOOL) golangci-lint run --allow-parallel-runners $(PKGS)
	$(TOOL) golangci-lint run --allow-parallel-runners --build-tags light ./cmd/atoll

.PHONY: fmt
fmt: ## format the Go files
	$(TOOL) gofumpt -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: check-fmt
check-fmt:
	@bad=$$($(TOOL) gofumpt -l .) && { [ -z "$$bad" ] || { echo "not formatted, run make fmt:"; echo "$$bad"; exit 1; }; }

.PHONY: check-race
check-race:
	@command -v "$${CC:-gcc}" >/dev/null || { \
		echo "The race detector needs a C compiler. Install one (./.ci/run does), or run: make test" >&2; exit 1; }

# govulncheck exits with 3 when it found something, and with another status
# when it could not check, which must not count as success.
.PHONY: vuln
vuln: ## look for known vulnerabilities (needs the network)
	@rc=0; $(TOOL) govulncheck $(PKGS) || rc=$$?; \
	case $$rc in \
	0) ;; \
	3) echo "govulncheck found vulnerabilities." >&2 ;; \
	*) echo "govulncheck could not check: its database needs the network." >&2 ;; \
	esac; exit $$rc

.PHONY: check-tidy
check-tidy: ## check that go.mod and go.sum are what go mod tidy makes
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(GO) -C build/bench mod tidy -diff

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist internal/guest/program/built/linux-* cmd/atoll/built/engine.*
