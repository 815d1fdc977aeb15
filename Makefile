# Targets for developers and CI. `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-python test-all lint lint-core lint-python format bench budget growth fuzz papers docs \
	wheels lock clean toolchain

VENV ?= .venv
BIN := $(VENV)/bin
# Shells opened before Rust was installed lack this path.
export PATH := $(PATH):$(HOME)/.cargo/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Builds started by pip use Cargo.lock as well.
export MATURIN_PEP517_ARGS := --locked

BUILT_FROM := Cargo.toml Cargo.lock rust/Cargo.toml python/Cargo.toml pyproject.toml \
	$(shell find rust/src python/src -name '*.rs')

# `cargo fmt` finds neither the modules declared by `kinds!` nor the fuzz targets.
LISTED := $(filter-out %/mod.rs, $(wildcard $(addprefix rust/src/, scheduler/*.rs router/*.rs timing/*.rs))) \
	$(wildcard rust/fuzz/*.rs rust/fuzz/fuzz_targets/*.rs)

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/released ## Replay a small trace through one replica and print the summary
	@$(BIN)/inferq replay traces/azure_2023.csv --scheduler sarathi --timing a100

test: test-core test-python ## Run every test, Rust and Python

# nextest runs tests in parallel but skips doctests. Only the core has tests. Naming both packages gives shared
# dependencies the features of the extension, so they are compiled once.
test-core: BOTH := -p inferq-core -p inferq-python
test-core: export PROPTEST_RNG_SEED ?= 0
test-core: toolchain ## Run the tests of the Rust core
	@if cargo nextest --version >/dev/null 2>&1; then \
		set -x; cargo nextest run --locked --cargo-profile tested $(BOTH) && \
			cargo test --locked --profile tested $(BOTH) --doc; \
	else \
		set -x; cargo test --locked --profile tested $(BOTH); \
	fi

test-python: $(VENV)/tested ## Run the tests of the Python package
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

test-all: export INFERQ_NIGHT ?= $(shell date +%F)
test-all: export PROPTEST_RNG_SEED ?= $(shell date +%s)
test-all: $(VENV)/torch ## Run the nightly tests: more scenarios, new seeds, PyTorch, a browser
	@command -v chromium >/dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; } || \
		echo "chromium cannot be installed: browser tests are skipped" >&2
	$(MAKE) test

lint: lint-core lint-python ## Check format, lints, types, stubs and docs; warnings are errors

lint-core: $(VENV)/tested
	cargo fmt --all --check && rustfmt --edition 2024 --check $(LISTED)
	PYO3_PYTHON=$(abspath $(BIN)/python) cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps -p inferq-core

lint-python: $(VENV)/tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/user_script.py
	$(BIN)/python -m mypy.stubtest inferq._core

format: $(VENV)/tools ## Format everything and apply automatic lint fixes
	cargo fmt --all && rustfmt --edition 2024 $(LISTED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/tools $(VENV)/released ## Time the core (criterion) and whole runs from Python (pytest-benchmark)
	cargo bench --locked -p inferq-benches
	$(BIN)/python -m pytest benches --benchmark-only --timeout 0
	$(BIN)/python benches/scaling.py
	$(BIN)/python benches/python_policy.py

# Both counts use the release build: linked into a program, and loaded by Python.
budget: $(VENV)/released ## Check instructions, cache misses and results of the core against ceilings; KEEP=1 renews them
	$(BIN)/python benches/budget/budget.py --python $(BIN)/python $(if $(KEEP),--keep)

growth: $(VENV)/released ## Check that cost grows linearly with the scenario; QUICK=1 uses two small sizes
	$(BIN)/python benches/growth.py $(if $(QUICK),--quick)

fuzz: SECONDS ?= 60
fuzz: toolchain ## Fuzz the core, SECONDS=60 per target (needs nightly Rust and cargo-fuzz)
	@cd rust && for target in workload engine policy plan; do \
		mkdir -p fuzz/corpus/$$target; \
		cargo +nightly fuzz run --fuzz-dir fuzz $$target fuzz/corpus/$$target $$(ls -d fuzz/seeds/$$target 2>/dev/null) -- \
			-max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=2048 || exit 1; \
	done

papers: $(VENV)/released ## Reproduce the five papers into docs/explanation/papers; TRACE=folder adds the rows from real traces
	@for name in li2025 ao2025 bari2025 lin2026 nie2026; do \
		echo "inferq paper $$name"; \
		$(BIN)/inferq paper $$name --out docs/explanation/papers/$$name.md $(if $(TRACE),--trace $(TRACE)) || exit 1; \
	done
	$(BIN)/inferq paper hardware --out docs/explanation/accuracy.md $(if $(TRACE),--trace $(TRACE))

docs: $(VENV)/tested ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheels: $(VENV)/wheels ## Build and test the wheels of this platform, and count plain and profile-guided instructions; EMULATE=1 tests arm64
	$(BIN)/python .ci/wheels.py $(if $(EMULATE),--emulate)

lock: $(VENV)/tools ## Update Cargo.lock and requirements-*.txt to the newest allowed versions
	cargo update
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --group dev --extra fit --extra plots --extra serve --extra tokenizers --universal --python-version 3.10 \
		--upgrade --generate-hashes --no-annotate --no-header --quiet --output-file requirements-dev.txt
	$(BIN)/uv pip compile --group wheels --universal --python-version 3.10 \
		--upgrade --generate-hashes --no-annotate --no-header --quiet --output-file requirements-wheels.txt
	echo torch | $(BIN)/uv pip compile - --constraint requirements-dev.txt --universal --python-version 3.10 \
		--upgrade --generate-hashes --no-annotate --no-header --quiet --output-file requirements-torch.txt

clean: ## Remove all build outputs
	rm -rf $(VENV) target dist site python/inferq/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

toolchain:
	@command -v cargo >/dev/null || { \
		echo "cargo not found; inferq needs Rust. Install it from https://rustup.rs, then run make again." >&2; \
		exit 1; }

$(BIN)/python: | toolchain
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python3.10; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
			$$python -m venv $(VENV) && exit 0; \
			rm -rf $(VENV); \
			exit 1; \
		fi; \
	done; \
	echo "inferq needs Python 3.10 or newer; found $$(python3 --version 2>/dev/null || echo none)." \
		"To use another interpreter: make demo PYTHON=/path/to/python" >&2; \
	exit 1

# Both cores are editable installs in the same place: .py changes are active at once, .rs changes after the next make.
# The demo and benches use the release build; tests and lints use the build with debug assertions.
$(VENV)/released: $(BUILT_FROM) | toolchain $(BIN)/python
	@echo "building and installing inferq into $(VENV); the first build takes a few minutes"
	@$(BIN)/python -m pip install --quiet --editable .
	@rm -f $(VENV)/tested && touch $@

$(VENV)/tested: $(BUILT_FROM) $(VENV)/tools
	PATH="$(abspath $(BIN)):$$PATH" MATURIN_PEP517_ARGS="--locked --profile tested" \
		$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	@rm -f $(VENV)/released && touch $@

$(VENV)/tools: requirements-dev.txt | toolchain $(BIN)/python
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	@touch $@

$(VENV)/wheels: requirements-wheels.txt | toolchain $(BIN)/python
	$(BIN)/python -m pip install --quiet --requirement requirements-wheels.txt
	@touch $@

# A partial PyTorch install breaks imports, so remove it.
$(VENV)/torch: requirements-torch.txt $(VENV)/tools
	$(BIN)/python -m pip install --quiet --requirement requirements-torch.txt || \
		{ rm -rf $(VENV)/lib/python*/site-packages/torch; exit 1; }
	@touch $@
