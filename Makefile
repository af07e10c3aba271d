# Siltstone: what CI does, and what a newcomer needs, from nothing but a clone.
#   make demo    installs and runs the main job on real data
#   make test    installs and passes the tests
#   make test-again  what failed in the last run, one after another
#   make fuzz    the kernels' tests with bounds checking, and fuzzing for a bounded time
#   make check   formatting, lint, types, import contracts
#   make bench   the benchmarks
#   make cost    simulates the workloads of docs/explanation/cost.md anew
#   make lock    resolves the pinned versions anew
#   make kafka-tools  fetches Kafka's own tools for tests, where there is Java and Maven
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# Hundreds of interpreters start in the tests, and read what is compiled already, also where the machine's
# settings (those of container images, often) say that Python shall not keep it.
export PYTHONDONTWRITEBYTECODE :=
# Kafka clients for Node are tested with where there is Node.
NODE_CLIENTS := $(if $(and $(shell command -v node),$(shell command -v npm)),.node/.installed)

.PHONY: demo test test-again fuzz check bench cost format lock kafka-tools clean

demo: .venv/.installed
	$(BIN)/siltstone demo

# Three workers on two cores: much of the time tests wait, for processes to start or to be found dead.
test: .venv/.installed-dev kafka-tools $(NODE_CLIENTS)
	$(BIN)/pytest -n 3 --dist worksteal $(ARGS)

# More than three are no accident of the machine: those who wait for the answer should not wait longer.
FAILED := .pytest_cache/v/cache/lastfailed
test-again:
	@test -e $(FAILED) || { echo "No test has failed here."; exit 1; }
	@test "$$(grep -c ': true' $(FAILED))" -le 3 || { echo "More than three tests failed: they are not run again."; exit 1; }
	$(BIN)/pytest --last-failed --last-failed-no-failures none -p no:randomly $(ARGS)

# Kernels are compiled anew with numba's bounds checking, into a cache of their own. Runs are the same each time.
CHECKED := NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.venv/checked-kernels
KERNEL_TESTS := tests/object_format tests/spark_jobs/task/test_extent_cut.py
FUZZ_RUNS ?= 500
fuzz: .venv/.installed-dev
	HYPOTHESIS_PROFILE=brief $(CHECKED) $(BIN)/pytest -n 2 $(KERNEL_TESTS)
	for target in batches codecs dedupe segment_file; do \
	  $(CHECKED) $(BIN)/python -m tests.fuzz.$$target -seed=1 -runs=$(FUZZ_RUNS) -verbosity=0 -artifact_prefix=.venv/ || exit 1; done

check: .venv/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

cost: .venv/.installed-dev
	$(BIN)/python -m benchmarks.cost $(ARGS)

format: .venv/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/bin/uv: requirements/bootstrap.lock
	$(PYTHON) -c 'import sys; sys.exit("Siltstone needs Python 3.11 or later, and this is " + sys.version.split()[0] + "; name one with make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/bootstrap.lock
	touch $@

.venv/.installed: .venv/bin/uv requirements/runtime.lock pyproject.toml
	@echo "Installing what is pinned in requirements/runtime.lock into .venv …"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/runtime.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

.venv/.installed-dev: .venv/.installed requirements/dev.lock
	@echo "Installing what the tests need from requirements/dev.lock into .venv …"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.lock
	touch $@

.node/.installed: tests/real_clients/node/package-lock.json
	@echo "Installing what is pinned in tests/real_clients/node into .node …"
	mkdir -p .node
	cp tests/real_clients/node/package.json tests/real_clients/node/package-lock.json tests/real_clients/node/.npmrc .node/
	cd .node && npm ci --silent --no-fund --no-audit --ignore-scripts
	touch $@

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
lock: .venv/bin/uv
	echo uv | $(COMPILE) --output-file requirements/bootstrap.lock -
	printf 'hatchling\neditables\n' | $(COMPILE) --extra demo --extra java --output-file requirements/runtime.lock pyproject.toml -
	printf 'hatchling\neditables\n' | $(COMPILE) --extra demo --extra java --extra dev --constraint requirements/runtime.lock --output-file requirements/dev.lock pyproject.toml -

# Optional: without them the tests that need them are left out, and pytest's header says so.
kafka-tools: .venv/bin/uv
	@if [ -e .venv/kafka-tools/.installed ] && [ ! tests/kafka_tools/pom.xml -nt .venv/kafka-tools/.installed ]; then :; \
	elif command -v mvn >/dev/null && command -v java >/dev/null; then \
		echo "Fetching Kafka's tools into .venv/kafka-tools …"; rm -rf .venv/kafka-tools; \
		mvn --quiet --batch-mode --file tests/kafka_tools/pom.xml dependency:copy-dependencies \
			-DincludeScope=runtime -DoutputDirectory="$(CURDIR)/.venv/kafka-tools" >/dev/null \
			&& touch .venv/kafka-tools/.installed || echo "… not now: Maven has no way to its repository"; \
	fi

clean:
	rm -rf .venv .node
