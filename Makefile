# Kvist: what a person types. Each target is one step that can be repeated, asks nothing, and needs the network only to
# install what is missing: Debian packages, and Python ones in environments below build/. The work is done by CMake (CMakePresets.json) and the scripts in tools/.
#
#   make run            make test            make build JOBS=4            make install PREFIX=/opt/kvist
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

# How many compilers, and how many tests, run at once.
JOBS ?= $(shell nproc)
TEST_JOBS ?= 2
# `make run TRACE=FILE`: a request trace to replay instead of the generated agent workload.
TRACE ?=
# `make fuzz SECONDS_EACH=60`: how long each fuzz target runs.
SECONDS_EACH ?= 60
# `make test-engines ENGINE=vllm WHICH=all`: which engine, and fast, slow or all tests. `make run ENGINE=1`: the engine demonstration.
ENGINE ?=
WHICH ?= fast
# `make bench-disk DIRECTORY=/mnt/nvme`: on which file system.
DIRECTORY ?= /var/tmp
PREFIX ?= /usr/local
DESTDIR ?=
export JOBS TEST_JOBS TRACE SECONDS_EACH ENGINE WHICH DIRECTORY PREFIX DESTDIR

.PHONY: help run test build test-all test-engines bench bench-disk bench-peers bench-python mutate fuzz docs format lint install wheel clean

help: ## Show this list
	@echo "Kvist: one pool of KV-cache blocks for the LLM engines of a host."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Variables: JOBS=$(JOBS) TEST_JOBS=$(TEST_JOBS) TRACE=FILE ENGINE=1 (run) SECONDS_EACH=$(SECONDS_EACH) (fuzz)"
	@echo "           ENGINE=NAME WHICH=$(WHICH) (test-engines: fast, slow or all)"
	@echo "           PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) (install)"

run: build ## Build, start a node, replay an agent workload through it and compare every byte (TRACE=FILE: a public trace; ENGINE=1: then two real vLLM engines)
	@tools/run.sh
	@[[ -z "$(ENGINE)" ]] || { tools/bootstrap.sh build extension && tools/build.sh release kvist kvist_python; }
	@[[ -z "$(ENGINE)" ]] || tools/run_engines.sh || [[ $$? -eq 77 ]]

test: ## Build all and run the fast tests, about two minutes after the build
	@tools/bootstrap.sh build extension
	@tools/build.sh release
	@tools/test.sh release fast

build: ## Build the command: leaves build/kvist
	@tools/bootstrap.sh build
	@tools/build.sh release kvist

test-all: ## Run every test, slow ones too, then all again under ASan+UBSan and under TSan
	@tools/bootstrap.sh build extension
	@for preset in release asan tsan; do tools/build.sh $$preset; tools/test.sh $$preset all; done

test-engines: ## Run the doors' tests on real engines (ENGINE=vllm, sglang, lmcache or mooncake; default all), in environments of their own
	@tools/bootstrap.sh build extension
	@tools/build.sh release kvist kvist_python
	@tools/engine_tests.sh build $(ENGINE)

bench: build ## Measure this machine: `kvist bench all`, each figure beside its ceiling
	@build/kvist bench all

bench-disk: build ## Measure the disk tier's store beside fio (DIRECTORY=/var/tmp: where it writes some GiB)
	@tools/bootstrap.sh bench
	@build/kvist bench disk --directory "$(DIRECTORY)"

bench-peers: build ## Measure Kvist beside Mooncake Store on this machine, in turns, and print the table
	@tools/bench_peers.sh

bench-python: ## Measure batch calls from Python beside the same calls from C++, in turns
	@tools/bootstrap.sh build extension
	@tools/build.sh release kvist kvist_python python_batch_peer
	@PYTHONPATH=build/python /usr/bin/python3 bench/python_batch.py

mutate: ## Break the code in each way of tests/mutations/*.patch: the named test has to notice
	@tools/bootstrap.sh build
	@tools/mutate.sh

fuzz: ## Fuzz every decoder of foreign bytes for SECONDS_EACH seconds, then print the lines covered
	@tools/bootstrap.sh build fuzz
	@tools/build.sh fuzz fuzzers
	@tools/fuzz.sh

docs: build ## Write the generated pages of docs/ anew (settings, metrics) and check all pages: links, names, tests
	@tools/docs.sh

format: ## Format the sources in place
	@tools/bootstrap.sh format
	@tools/format.sh

lint: ## Check format, layers (who may include whom) and clang-tidy
	@tools/bootstrap.sh build format lint
	@tools/format.sh --check
	@tools/layers.sh
	@tools/build.sh release --configure-only
	@tools/tidy.sh

install: ## Install the command, the libraries and headers for C and C++, and the licence under DESTDIR/PREFIX
	@tools/bootstrap.sh build
	@tools/build.sh release kvist kvist_shared kvist_archive
	@cmake --install build --prefix "$(PREFIX)" --strip

wheel: ## Build the Python package: leaves dist/kvist-*.whl, one for Python 3.11 and every later one
	@tools/bootstrap.sh build extension
	@tools/build.sh release kvist kvist_python
	@tools/wheel.sh

clean: ## Delete everything that was built
	rm -rf build build-*
