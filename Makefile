# refruntime: `make demo` and `make test` set themselves up in .venv and run; nothing else is needed first.
#
# PYTHON   the interpreter the environments are made from (3.11 or newer)
# VENV     where ours lives; PEER_VENV where PyTorch lives, for comparing only
# JOBS     pytest processes at once
# ARGS     more arguments for the command that a target runs, as in `make test ARGS="-k softmax"`
PYTHON ?= python3
VENV ?= .venv
PEER_VENV ?= .venv-peer
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Each stamp says which extras are installed; a changed setup.cfg makes them stale.
BASE_STAMP := $(VENV)/.made
DEMO_STAMP := $(VENV)/.with-demo
TEST_STAMP := $(VENV)/.with-test
DEV_STAMP := $(VENV)/.with-dev
PEER_STAMP := $(PEER_VENV)/.made

.PHONY: demo test test-sim lint types layers check bench compare peer clean
.DEFAULT_GOAL := demo

demo: $(DEMO_STAMP)
	$(BIN)/python -m refruntime demo $(ARGS)

test: $(TEST_STAMP)
	$(BIN)/python -m pytest -n $(JOBS) -m "not sim" $(ARGS)
	$(MAKE) test-sim

# The simulator replaces numba.cuda at import, so its tests get a process of their own.
# Exit code 5 means that no test carries the mark.
test-sim: $(TEST_STAMP)
	NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -m sim $(ARGS) || test $$? -eq 5

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/codespell refruntime tests bench docs README.md CHANGELOG.md

types: $(DEV_STAMP)
	$(BIN)/mypy

layers: $(DEV_STAMP)
	$(BIN)/lint-imports

check: test lint types layers

bench: $(TEST_STAMP)
	$(BIN)/python -m pytest bench --benchmark-columns=min,median,ops --benchmark-sort=name $(ARGS)

compare: $(TEST_STAMP) $(PEER_STAMP)
	$(BIN)/python bench/compare.py --peer $(PEER_VENV)/bin/python $(ARGS)

peer: $(PEER_STAMP)

clean:
	rm -rf $(VENV) $(PEER_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -rf .benchmarks .hypothesis refruntime-demo
	find refruntime tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(BASE_STAMP):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "refruntime needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(DEMO_STAMP): setup.cfg pyproject.toml | $(BASE_STAMP)
	$(PIP) install -q -e '.[demo]'
	touch $@

$(TEST_STAMP): setup.cfg pyproject.toml | $(BASE_STAMP)
	$(PIP) install -q -e '.[test]'
	touch $@

$(DEV_STAMP): setup.cfg pyproject.toml | $(BASE_STAMP)
	$(PIP) install -q -e '.[test,dev]'
	touch $@ $(TEST_STAMP)

$(PEER_STAMP):
	$(PYTHON) -m venv $(PEER_VENV)
	$(PEER_VENV)/bin/python -m pip --disable-pip-version-check install -q torch==2.13.0 numpy
	touch $@
