# Two commands matter: `make demo` and `make test`. Both work on a machine with Rust, Python 3.10 or
# newer, make and a C compiler; what else is needed is found or installed by `prepare`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ENVIRONMENT := $(PYTHON) requirements/environment.py

BUILD_BIN = $(shell $(ENVIRONMENT) --where build)/bin
TEST_BIN = $(shell $(ENVIRONMENT) --where test)/bin
BROWSER_BIN = $(shell $(ENVIRONMENT) --where browser)/bin

# cmake and maturin come from the small environment. The stable ABI is described by a file, because
# pyo3 is built anew whenever its settings change, and cargo and maturin would find different ones.
# make's own places for jobs are no concern of theirs.
TOOLS = MAKEFLAGS= PATH="$(BUILD_BIN):$$PATH" PYO3_CONFIG_FILE="$(CURDIR)/crates/feedline-py/pyo3-config.txt"

# The wheel has its own set of features ("full"). Tests without the default ones are built of the same.
LEAN := --no-default-features

# The wheel is installed inside the clone, so that clones which share an environment do not meet.
SITE := $(CURDIR)/build/site
INSTALLED = PYTHONPATH="$(SITE)" PATH="$(SITE)/bin:$$PATH"

# $(call PACKAGE,name,why): installs a system package, or says how.
define PACKAGE
if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "Installing $(1) ($(2))"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1); } > /dev/null; \
	else \
		echo "$(1) is missing ($(2)). Install it and run make again:"; \
		echo "  Debian, Ubuntu: sudo apt-get install $(1)    Fedora: sudo dnf install $(1)    macOS: brew install $(1)"; \
		exit 1; \
	fi
endef

.PHONY: help demo test lint test-rust test-build test-python test-browser wheel sdist bench bench-formats bench-python fuzz soak clean \
	prepare prepare-test prepare-browser lint-form install \
	suite-rust suite-clippy suite-types suite-forking suite-plain suite-tensorflow suite-build suite-browser

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: install ## Make 2,000 sample photos, load them for two epochs, print a table
	$(INSTALLED) "$(BUILD_BIN)/python" -m feedline sample-data sample-data
	$(INSTALLED) "$(BUILD_BIN)/python" examples/demo.py sample-data

# The wheel first: nearly all that it is built of is built for the tests too. Then everything else beside
# each other, the longest first.
test: lint-form install prepare-test prepare-browser ## Everything that must hold: lint, and the tests
	@$(BESIDE_EACH_OTHER) suite-rust suite-plain suite-forking suite-browser suite-build suite-clippy \
		suite-tensorflow suite-types

lint: lint-form install prepare-test ## Formats, clippy, ruff, mypy --strict, stubs against the module
	@$(BESIDE_EACH_OTHER) suite-clippy suite-types

test-rust: prepare ## Tests of the crates, the model of the hand-over among them
	@$(MAKE) suite-rust

# torch's DataLoader forks, which JAX's threads in the same process would not survive.
FORKING_TESTS := tests/python/torch_differential tests/python/test_torch_samplers.py tests/python/test_torch_regressions.py \
	tests/python/test_workers.py tests/python/test_watchdog.py tests/python/test_examples.py

# TensorFlow and torchvision each bring an LLVM, and a process dies of having both.
TENSORFLOW_TESTS := tests/python/formats/test_tfrecord.py

# Beside each other, as each waits a lot: what one says is shown when it has ended; all are run when one fails.
BESIDE_EACH_OTHER := $(MAKE) --jobs=3 --keep-going $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# What a suite took, of the clock and of the processors.
TIMED = TIMEFORMAT='$@: %lR, of processors %lU'; time

test-python: install prepare-test ## Tests of the Python package, from the built wheel
	@$(BESIDE_EACH_OTHER) suite-forking suite-plain suite-tensorflow

test-build: install prepare-test ## Builds outside of the workspace: a crate of another, the source distribution
	@$(MAKE) suite-build

test-browser: install prepare-browser ## Tests of the pages in Chromium
	@$(MAKE) suite-browser

suite-rust:
	$(TIMED) $(TOOLS) cargo test --release --workspace --no-fail-fast $(LEAN)

suite-clippy:
	$(TIMED) $(TOOLS) cargo clippy --release --workspace $(LEAN) --all-targets -- -D warnings

suite-types:
	$(TIMED) { "$(TEST_BIN)/mypy" --strict python/feedline; \
		MYPYPATH=benchmarks:python "$(TEST_BIN)/mypy" --strict benchmarks; \
		PYTHONPATH="$(SITE)" MYPYPATH="$(SITE)" "$(TEST_BIN)/stubtest" feedline._native; }

suite-forking:
	$(TIMED) $(INSTALLED) "$(TEST_BIN)/python" -m pytest $(FORKING_TESTS)

suite-tensorflow:
	$(TIMED) $(INSTALLED) "$(TEST_BIN)/python" -m pytest $(TENSORFLOW_TESTS)

suite-plain:
	$(TIMED) $(INSTALLED) "$(TEST_BIN)/python" -m pytest tests/python $(FORKING_TESTS:%=--ignore=%) $(TENSORFLOW_TESTS:%=--ignore=%)

suite-build:
	$(TIMED) $(TOOLS) $(INSTALLED) "$(TEST_BIN)/python" -m pytest tests/build

suite-browser:
	$(TIMED) $(TOOLS) $(INSTALLED) "$(BROWSER_BIN)/python" -m pytest tests/browser

wheel: prepare ## Build the wheel into build/wheel
	@rm -rf build/wheel
	$(TOOLS) maturin build --release --out build/wheel

sdist: prepare ## Build the source distribution into build/sdist
	@rm -rf build/sdist
	$(TOOLS) maturin sdist --out build/sdist

# Part of it: make bench BENCH_WORKS=train,eval BENCH_ROUNDS=3. Works: benchmarks/works.py, and start.
BENCH_WORKS ?=
BENCH_FORMATS ?=
BENCH_ROUNDS ?= 5

bench: install prepare-test ## All loaders on the same work: installs rivals (20 GB), takes three quarters of an hour
	@missed=0; \
	$(TOOLS) cargo bench -p feedline --bench overhead || missed=1; \
	$(TOOLS) PYTHONPATH="$(SITE)" "$(BUILD_BIN)/python" benchmarks/run.py --works "$(BENCH_WORKS)" \
		--rounds $(BENCH_ROUNDS) --update-readme || missed=1; \
	[ -n "$(BENCH_WORKS)" ] || $(INSTALLED) "$(TEST_BIN)/python" benchmarks/python_code.py \
		--rounds $(BENCH_ROUNDS) --update-readme || missed=1; \
	$(INSTALLED) "$(TEST_BIN)/python" benchmarks/observing.py || missed=1; \
	exit $$missed

# Part of it: make bench-python BENCH_PYTHON=sleeping,photos BENCH_ROUNDS=3.
BENCH_PYTHON ?=

FUZZ_SECONDS ?= 60

fuzz: prepare ## Fuzz every format's reader, a minute each; installs cargo-fuzz
	@cargo fuzz --version > /dev/null 2>&1 || cargo install cargo-fuzz
	$(TOOLS) fuzz/run.sh $(FUZZ_SECONDS)

# Part of it: make soak SOAK="images tar" SOAK_SCALE=0.1. What was done is kept in build/soak.
SOAK ?=
SOAK_SCALE ?= 1

soak: install prepare-test ## Long proofs: damaged files by the million, bombs, killed workers: hours, resumable
	$(TOOLS) $(INSTALLED) "$(TEST_BIN)/python" tests/soak/run.py --scale $(SOAK_SCALE) $(SOAK)

bench-formats: install prepare-test ## Every format beside the image folder and its usual reader: twenty minutes
	$(INSTALLED) "$(TEST_BIN)/python" benchmarks/formats.py --works "$(BENCH_FORMATS)" \
		--rounds $(BENCH_ROUNDS)

bench-python: install prepare-test ## Data sets of Python code beside torch's DataLoader: ten minutes
	$(INSTALLED) "$(TEST_BIN)/python" benchmarks/python_code.py --works "$(BENCH_PYTHON)" \
		--rounds $(BENCH_ROUNDS) --update-readme

clean: ## Remove what was built here; the shared environments in ~/.cache/feedline stay
	rm -rf build dist sample-data .mypy_cache .pytest_cache .ruff_cache .hypothesis
	cargo clean

lint-form: prepare prepare-test
	cargo fmt --all --check
	"$(TEST_BIN)/ruff" check .
	"$(TEST_BIN)/ruff" format --check .

install: wheel
	@rm -rf "$(SITE)"
	@"$(BUILD_BIN)/python" -m pip --disable-pip-version-check install --quiet --no-deps --no-index \
		--target "$(SITE)" build/wheel/feedline-*.whl

prepare:
	@command -v cargo > /dev/null || { echo "Rust is missing: see https://rustup.rs"; exit 1; }
	@command -v cc > /dev/null || { echo "A C compiler is missing; on Debian or Ubuntu: apt-get install gcc"; exit 1; }
	@case "$$(uname -m)" in x86_64|amd64|i?86) ;; *) exit 0 ;; esac; \
	command -v nasm > /dev/null && exit 0; \
	$(call PACKAGE,nasm,it assembles libjpeg-turbo's fast paths)
	@$(PYTHON) requirements/web.py crates/feedline-view/web
	@$(ENVIRONMENT) build > /dev/null

prepare-test:
	@$(ENVIRONMENT) test > /dev/null

prepare-browser:
	@for name in "$${CHROMIUM:-}" chromium chromium-browser google-chrome; do \
		[ -n "$$name" ] && command -v "$$name" > /dev/null && exit 0; \
	done; \
	$(call PACKAGE,chromium,the pages are tested in it; another one is named with CHROMIUM=/path)
	@$(ENVIRONMENT) browser > /dev/null
