# Two commands matter to a newcomer: `make demo` and `make test`. Each sets up everything it needs.

PYTHON ?= $(or $(shell command -v python3.11),python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Reaches every pip call, those of build environments included.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test check format install browser bench clean

help:            ## list the targets
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 10

demo: $(STAMP)   ## the whole story on data that ships with scikit-learn
	$(BIN)/reluctant demo

# A process for each core with one thread each: more threads than cores is what makes torch slow. In the order of the folders, since
# xdist's own begins with the files of many tests, and so ends with those of long ones, for which one process waits for the other.
test: $(STAMP)   ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadscope --no-loadscope-reorder

check: $(STAMP)  ## ruff, ruff format, mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## the loader benchmark (benchmarks/README.md lists the others)
	$(BIN)/python benchmarks/loader.py

install: $(STAMP) ## only the environment

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "reluctant is pinned for Python 3.11, found $$($(PYTHON) --version 2>&1); run make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "this Python cannot make virtual environments; on Debian: apt-get install python3.11-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev,private,tensorboard]'
	@touch $@

browser:         ## Debian's Chromium, for the test that looks at the report's page
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; } || \
	  { echo "no Chromium here and no way to install it (apt-get as root); the test that needs it will be skipped"; exit 0; }
	@command -v chromium >/dev/null || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "Chromium could not be installed; the test that needs it will be skipped"

clean:           ## remove the environment and what builds and tests leave; runs/ stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
