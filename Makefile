# rmqlog's commands; `make` alone lists them.
# PYTHON=python3.12 chooses another interpreter for a new .venv.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint types bench crash faults fuzz broker test-matrix clean java FORCE

VENV := .venv
BIN := $(VENV)/bin
PACKAGES := api commitlog_format spark_datasource writer
export PYTHON

# Spark starts its workers with this interpreter, and no user's own settings reach the tests.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYTHONNOUSERSITE := 1

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.links ## make .venv with everything in it; does nothing when nothing changed

demo: setup java ## make a store, query it, write it back, draw what is in it
	$(BIN)/rmqlog demo

test: lint types java ## lint, types, and all tests with their branch coverage
	$(BIN)/python -m pytest -m "not (root or crash or broker or faults)" --cov --cov-report=term
# These mostly run in processes that are killed or in Java, where coverage would only slow them.
	$(BIN)/python -m pytest -m "crash or broker or faults"

lint: setup ## ruff
	$(BIN)/ruff check .

types: setup ## mypy --strict
	$(BIN)/mypy -p rmqlog

bench: setup java ## the benchmarks, each a ratio to a reference in the same run (QUICK=1: short)
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

crash: setup ## only the crash tests (COUNT=10: ten times as many random cases)
	$(BIN)/python -m pytest -m crash $(if $(COUNT),--crash-count=$(COUNT))

fuzz: setup ## only the tests with damaged and random bytes
	$(BIN)/python -m pytest -m fuzz

broker: setup java ## only the tests against real RocketMQ brokers
	$(BIN)/python -m pytest -m broker

faults: setup java ## only the tests that kill tasks, workers and drivers of Spark while it writes
	$(BIN)/python -m pytest -m faults

test-matrix: ## all tests on the oldest and newest Python and pyspark
	scripts/test_matrix.sh

clean: ## remove everything that these commands made
	rm -rf $(VENV) .venv-matrix build *.egg-info
	rm -rf .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf artifacts demo-output derby.log metastore_db spark-warehouse
	find $(PACKAGES) tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

java:
	@scripts/check_machine.sh java >/dev/null

# The environment with all pinned dependencies.
$(VENV)/.dependencies: setup.cfg pyproject.toml constraints.txt
	@python=$$(scripts/check_machine.sh python) && \
	    { $(BIN)/python -c '' 2>/dev/null || "$$python" -m venv --clear $(VENV); }
	$(BIN)/python -m pip install -qq -c constraints.txt pip setuptools
	$(BIN)/python -m pip install -qq --no-build-isolation -c constraints.txt -e '.[test]'
	@touch $@

# Our packages are a tree of links to the files that there were: renewed when the list changes.
$(VENV)/.links: $(VENV)/.dependencies $(VENV)/.files
	$(BIN)/python -m pip install -qq --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.files: FORCE | $(VENV)/.dependencies
	@find $(PACKAGES) -name '*.py' -o -name '*.jar' -o -name py.typed | LC_ALL=C sort >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
