# Siltstone's tasks. The first two need nothing but a clone, Python 3.11 or later, and make.
#   make demo        install, and run the main job on real data
#   make test        install, and run the tests
#   make test-again  run the tests that failed in the last run, one at a time
#   make test-postgres-15  the catalog's tests with the oldest PostgreSQL that is supported, if it is installed
#   make check       formatting, lint, types, import contracts
#   make docs        build the documentation site, strict about links
#   make dist        build wheel, source archive and a list of pinned versions; install the wheel once per role
#   make campaign MINUTES=60  all faults at once for an hour, with a ledger of every acknowledgement
#   make transactions-check MINUTES=60  histories of transactional clients under faults, and a checker
#   make streams-check MINUTES=30  an exact word count of Kafka Streams whose agents are killed
#   make fuzz        the kernels' tests with bounds checks, fuzzing, and a long flood of an agent
#   make mutants     mutation testing of the modules that decide about data
#   make slips       slips by hand in rare combinations, each with the tests that must notice it
#   make coverage    the tests with branch coverage
#   make bench       the benchmarks
#   make cost        simulate the workloads of docs/explanation/cost.md and update its figures
#   make references  generate the reference pages and the table of Kafka's schemas
#   make lock        resolve the pinned versions again
#   make pgbouncer   fetch PgBouncer for tests, if this is Debian or Ubuntu and it is not installed
#   make kafka-tools fetch Kafka's own tools for tests, if Java and Maven are installed
# PYTHON=python3.13 VENV=.venv-3.13 runs any of them with another Python in an environment of its own.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The tests start hundreds of interpreters. Compiled modules make them fast, so keep them even if the machine's
# settings (those of container images, often) say otherwise.
export PYTHONDONTWRITEBYTECODE :=
# Kafka clients for Node are tested if Node is installed.
NODE_CLIENTS := $(if $(and $(shell command -v node),$(shell command -v npm)),.node/.installed)

.PHONY: demo test test-again test-postgres-15 campaign transactions-check streams-check fuzz check docs dist coverage mutants slips bench cost references format lock kafka-tools pgbouncer clean

demo: $(VENV)/.kernels
	$(BIN)/siltstone demo

# Four workers on two cores: tests wait much of the time, for processes to start or to be found dead.
test: $(VENV)/.installed-dev $(VENV)/.kernels kafka-tools pgbouncer $(NODE_CLIENTS)
	$(BIN)/pytest -n 4 --dist worksteal $(ARGS)

# More than five failures are no accident of the machine, so they are not run again.
FAILED := .pytest_cache/v/cache/lastfailed
test-again:
	@test -e $(FAILED) || { echo "No test has failed here."; exit 1; }
	@test "$$(grep -c ': true' $(FAILED))" -le 5 || { echo "More than five tests failed: they are not run again."; exit 1; }
	$(BIN)/pytest --last-failed --last-failed-no-failures none -p no:randomly $(ARGS)

# Debian and Ubuntu put its programs there. The tests of the embedded server need the wheel's PostgreSQL.
POSTGRES_15 := /usr/lib/postgresql/15/bin
test-postgres-15: $(VENV)/.installed-dev $(VENV)/.kernels
	@if test -x $(POSTGRES_15)/postgres; then \
	  POSTGRES_PROGRAMS=$(POSTGRES_15) $(BIN)/pytest -n 3 --dist worksteal tests/catalog tests/maintenance/test_deletions_after_failover.py \
	    --ignore tests/catalog/database/test_embedded.py $(ARGS); \
	else echo "PostgreSQL 15 is not in $(POSTGRES_15): its tests are left out."; fi

# The directory stays, with the events and the logs of all processes.
MINUTES ?= 60
campaign: $(VENV)/.installed-dev
	mkdir -p build
	CAMPAIGN_MINUTES=$(MINUTES) $(BIN)/pytest -q -s -p no:randomly --basetemp=build/campaign -o faulthandler_timeout=0 \
	  tests/crash/test_campaign.py::test_a_long_campaign $(ARGS)

# Their directories stay, too, with all histories and logs.
transactions-check: $(VENV)/.installed-dev
	mkdir -p build
	TRANSACTIONS_MINUTES=$(MINUTES) $(BIN)/pytest -q -s -p no:randomly --basetemp=build/transactions -o faulthandler_timeout=0 \
	  tests/exactly_once/test_histories.py::test_long_histories $(ARGS)

streams-check: $(VENV)/.installed-dev kafka-tools
	mkdir -p build
	STREAMS_MINUTES=$(MINUTES) $(BIN)/pytest -q -s -p no:randomly --basetemp=build/streams -o faulthandler_timeout=0 \
	  tests/exactly_once/test_streams.py::test_a_long_word_count $(ARGS)

# Kernels are compiled with numba's bounds checks into a cache of their own. Runs are the same each time.
CHECKED := NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/checked-kernels
KERNEL_TESTS := tests/object_format tests/spark_jobs/task/test_extent_cut.py
FUZZ_RUNS ?= 500
fuzz: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=brief $(CHECKED) $(BIN)/pytest -n 2 $(KERNEL_TESTS)
	SILTSTONE_LONG_FLOOD=1 $(BIN)/pytest tests/flood
	for target in batches codecs dedupe segment_file; do \
	  $(CHECKED) $(BIN)/python -m tests.fuzz.$$target -seed=1 -runs=$(FUZZ_RUNS) -verbosity=0 -artifact_prefix=$(VENV)/ || exit 1; done

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config import_contracts.toml

# Not quiet: --strict counts only warnings that are printed.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site
	@echo "The documentation is in build/site/index.html."

dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist .
	sed -n 's/ *\\$$//;/^[a-z0-9]/p' requirements/runtime.lock > dist/constraints.txt
	$(BIN)/python -m tests.packaging.check_dist dist

# Hot loops run as machine code and are measured by their callers' results, not by coverage.
coverage: $(VENV)/.installed-dev kafka-tools pgbouncer $(NODE_CLIENTS)
	$(BIN)/pytest -n 3 --dist worksteal --cov --cov-branch --cov-report=term:skip-covered --cov-report=html:build/coverage $(ARGS)

mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutation $(or $(ARGS),--most 5)

slips: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutation.slips $(ARGS)

bench: $(VENV)/.installed-dev kafka-tools
	$(BIN)/python -m benchmarks $(ARGS)

cost: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.cost $(ARGS)

references: $(VENV)/.installed-dev
	$(BIN)/python -m siltstone.settings.reference
	$(BIN)/python -m siltstone.metrics_reference
	$(BIN)/python -m agent.http.openapi_reference
	$(BIN)/python -m agent.kafka.codec.schema_table

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(BIN)/uv: requirements/bootstrap.lock
	$(PYTHON) -c 'import sys; sys.exit("Siltstone needs Python 3.11 or later, and this is " + sys.version.split()[0] + "; name one with make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements/bootstrap.lock
	touch $@

$(VENV)/.installed: $(BIN)/uv requirements/runtime.lock pyproject.toml
	@echo "Installing the pinned versions of requirements/runtime.lock into $(VENV) …"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/runtime.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

# Compiled code is stored next to its source, so that no process waits for it, neither an agent nor a Spark task.
$(VENV)/.kernels: $(VENV)/.installed $(shell find agent object_format spark_jobs -name '*.py')
	@echo "Compiling the kernels …"
	@$(BIN)/siltstone warm-kernels
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.lock
	@echo "Installing the tools of requirements/dev.lock into $(VENV) …"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.lock
	touch $@

.node/.installed: tests/real_clients/node/package-lock.json
	@echo "Installing the pinned packages of tests/real_clients/node into .node …"
	mkdir -p .node
	cp tests/real_clients/node/package.json tests/real_clients/node/package-lock.json tests/real_clients/node/.npmrc .node/
	cd .node && npm ci --silent --no-fund --no-audit --ignore-scripts
	touch $@

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header
lock: $(BIN)/uv
	echo uv | $(COMPILE) --output-file requirements/bootstrap.lock -
	printf 'hatchling\neditables\n' | $(COMPILE) --extra all --extra java --output-file requirements/runtime.lock pyproject.toml -
	printf 'hatchling\neditables\n' | $(COMPILE) --extra all --extra java --extra dev --constraint requirements/runtime.lock --output-file requirements/dev.lock pyproject.toml -

# Optional: without these tools the tests that need them are left out, and pytest's header says so.
kafka-tools: $(BIN)/uv
	@if [ -e .venv/kafka-tools/.installed ] && [ ! tests/kafka_tools/pom.xml -nt .venv/kafka-tools/.installed ]; then :; \
	elif command -v mvn >/dev/null && command -v java >/dev/null; then \
		echo "Fetching Kafka's tools into .venv/kafka-tools …"; rm -rf .venv/kafka-tools; \
		mvn --quiet --batch-mode --file tests/kafka_tools/pom.xml dependency:copy-dependencies \
			-DincludeScope=runtime -DoutputDirectory="$(CURDIR)/.venv/kafka-tools" >/dev/null \
			&& touch .venv/kafka-tools/.installed || echo "… not now: Maven cannot reach its repository"; \
	fi

# Unpacked next to the environment, so this needs no root.
PGBOUNCER := .venv/pgbouncer
pgbouncer:
	@if [ -x $(PGBOUNCER)/usr/sbin/pgbouncer ] || PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null; then :; \
	elif command -v apt-get >/dev/null && command -v dpkg >/dev/null; then \
		echo "Fetching PgBouncer into $(PGBOUNCER) …"; rm -rf $(PGBOUNCER); mkdir -p $(PGBOUNCER); \
		(cd $(PGBOUNCER) && apt-get -qq download pgbouncer libc-ares2 libevent-2.1-7 2>/dev/null \
			&& for each in *.deb; do dpkg -x "$$each" . || exit 1; done && rm ./*.deb) \
			|| { rm -rf $(PGBOUNCER); echo "… not now: apt-get cannot download it (apt-get update may help)"; }; \
	fi

clean:
	rm -rf .venv .venv-* .node build dist
