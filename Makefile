# What people and CI run. `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help demo test test-core test-python test-all lint lint-core lint-python format bench budget growth fuzz papers docs \
	wheels lock clean toolchain

VENV ?= .venv
BIN := $(VENV)/bin
# A shell that was open before Rust was installed does not know where it is.
export PATH := $(PATH):$(HOME)/.cargo/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The builds that pip starts obey Cargo.lock too.
export MATURIN_PEP517_ARGS := --locked

BUILT_FROM := Cargo.toml Cargo.lock rust/Cargo.toml python/Cargo.toml pyproject.toml \
	$(shell find rust/src python/src -name '*.rs')

# `cargo fmt` sees neither the modules that the lists of kinds declare nor the fuzz targets.
LISTED := $(filter-out %/mod.rs, $(wildcard $(addprefix rust/src/, scheduler/*.rs router/*.rs timing/*.rs))) \
	$(wildcard rust/fuzz/*.rs rust/fuzz/fuzz_targets/*.rs)

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/released ## Replay a small trace through one replica and print the summary
	@$(BIN)/inferq replay traces/azure_2023.csv --scheduler sarathi --timing a100

test: test-core test-python ## Run every test, Rust and Python

# nextest runs tests side by side but leaves out doctests. Both packages are named, though only the core has tests:
# what both need then has the same features as in the extension, and is not compiled twice.
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
test-all: $(VENV)/torch ## Run what a change does not wait for too: more scenarios, fresh seeds, PyTorch, a browser
	@command -v chromium >/dev/null || { apt-get update && apt-get install -y --no-install-recommends chromium; } || \
		echo "no chromium can be installed here: the tests that look at pages are skipped" >&2
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

format: $(VENV)/tools ## Format everything and apply the lints that mend themselves
	cargo fmt --all && rustfmt --edition 2024 $(LISTED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/tools $(VENV)/released ## Time the core (criterion) and the whole path from frame to frame (pytest-benchmark)
	cargo bench --locked -p inferq-benches
	$(BIN)/python -m pytest benches --benchmark-only --timeout 0
	$(BIN)/python benches/scaling.py
	$(BIN)/python benches/python_policy.py

# Both counts are of the released core: the one that is linked into a program of its own, and the one that Python loads.
budget: $(VENV)/released ## Hold instructions, cache misses and results of the core against ceilings; KEEP=1 renews them
	$(BIN)/python benches/budget/budget.py --python $(BIN)/python $(if $(KEEP),--keep)

growth: $(VENV)/released ## Count whether the cost stays in proportion as a scenario grows; QUICK=1 takes two small sizes
	$(BIN)/python benches/growth.py $(if $(QUICK),--quick)

fuzz: SECONDS ?= 60
fuzz: toolchain ## Try anything at all on the core, SECONDS=60 a target (needs nightly Rust and cargo-fuzz)
	@cd rust && for target in workload engine policy plan; do \
		mkdir -p fuzz/corpus/$$target; \
		cargo +nightly fuzz run --fuzz-dir fuzz $$target fuzz/corpus/$$target $$(ls -d fuzz/seeds/$$target 2>/dev/null) -- \
			-max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=2048 || exit 1; \
	done

papers: $(VENV)/released ## Reproduce the five papers into docs/explanation/papers; TRACE=folder with the real traces for all rows
	@for name in li2025 ao2025 bari2025 lin2026 nie2026; do \
		echo "inferq paper $$name"; \
		$(BIN)/inferq paper $$name --out docs/explanation/papers/$$name.md $(if $(TRACE),--trace $(TRACE)) || exit 1; \
	done
	$(BIN)/inferq paper hardware --out docs/explanation/accuracy.md $(if $(TRACE),--trace $(TRACE))

docs: $(VENV)/tested ## Build the guides and the reference into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheels: $(VENV)/wheels ## Build, check and try the wheels that can be built here into dist/; EMULATE=1 tries arm64 under qemu
	$(BIN)/python .ci/wheels.py $(if $(EMULATE),--emulate)

lock: $(VENV)/tools ## Lock the newest versions that fit: Cargo.lock and requirements-*.txt
	cargo update
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --group dev --extra serve --extra tokenizers --universal --python-version 3.10 \
		--upgrade --generate-hashes --no-annotate --no-header --quiet --output-file requirements-dev.txt
	$(BIN)/uv pip compile --group wheels --universal --python-version 3.10 \
		--upgrade --generate-hashes --no-annotate --no-header --quiet --output-file requirements-wheels.txt
	echo torch | $(BIN)/uv pip compile - --constraint requirements-dev.txt --universal --python-version 3.10 \
		--upgrade --generate-hashes --no-annotate --no-header --quiet --output-file requirements-torch.txt

clean: ## Remove everything that was built
	rm -rf $(VENV) target dist site python/inferq/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

toolchain:
	@command -v cargo >/dev/null || { \
		echo "inferq is built with Rust, and there is no cargo here. Get it from https://rustup.rs, then run make again." >&2; \
		exit 1; }

$(BIN)/python: | toolchain
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python3.10; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
			$$python -m venv $(VENV) && exit 0; \
			rm -rf $(VENV); \
			exit 1; \
		fi; \
	done; \
	echo "inferq needs Python 3.10 or newer; here is $$(python3 --version 2>/dev/null || echo none)." \
		"If there is another: make demo PYTHON=/path/to/python" >&2; \
	exit 1

# Both cores are installed editable, in the same place: a change of a .py file acts at once, a change of a .rs file at the
# next make. Users and benches have the core as it is released, tests and lints the one with its debug assertions.
$(VENV)/released: $(BUILT_FROM) | toolchain $(BIN)/python
	@echo "building and installing inferq into $(VENV); the first time takes a few minutes"
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

# Half of PyTorch would be worse than none.
$(VENV)/torch: requirements-torch.txt $(VENV)/tools
	$(BIN)/python -m pip install --quiet --requirement requirements-torch.txt || \
		{ rm -rf $(VENV)/lib/python*/site-packages/torch; exit 1; }
	@touch $@
