# `make` lists the targets. Everything runs in $(VENV), which `make setup` fills once from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.liquidcp-setup
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint kernels test-long test-gpu clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make $(VENV) and install the package with its tools

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "LiquidCP needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(STAMP) ## plan a batch and run it on the CPU
	$(BIN)/liquidcp demo

test: $(STAMP) ## all tests that need neither a GPU nor minutes
	$(PYTEST) -n 2

check: $(STAMP) ## lint, types, sizes, imports and the quick tests, in under a minute
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint quick

quick: $(STAMP)
	$(PYTEST) -n 2 -q -m "not gpu and not long and not slow"

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(BIN)/pyright --version > /dev/null || { \
	  echo "pyright cannot start. It needs Node.js 14 or newer on PATH, or a network to fetch it." >&2; exit 1; }
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tools/size_check.py
	$(BIN)/python tools/import_check.py

kernels: $(STAMP) ## compile every shipped kernel and print what each costs, in minutes
	$(BIN)/python tools/build_kernels.py

test-long: $(STAMP) ## the tests that take minutes
	$(PYTEST) -n 2 -m "long and not gpu"

test-gpu: $(STAMP) ## the tests that need a CUDA device
	$(PYTEST) -m "gpu and not long"

clean: ## remove caches and build outputs, not $(VENV)
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find liquidcp_compiler runtime tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
