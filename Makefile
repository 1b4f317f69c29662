# Two commands for a newcomer: `make run` and `make test`. Everything lands in .venv; nothing else is touched.
#
# PYTHON       the interpreter .venv is made with; by default python3, or the newest python3.N that fits
# ARGS         more words for the program behind run, bench and campaign
# PYTEST_ARGS  words for pytest, for example PYTEST_ARGS='tests/unit -k budgets'; by default two workers, -n 2
#
# torch: PyPI's torch 2.13.0 is the CUDA build. Where pip is configured to see an index that also has a CPU build of
# the same release (PIP_EXTRA_INDEX_URL in the environment), pip takes that one: the pin names no build.

PYTHON ?= python3
PYTEST_ARGS ?= -n 2
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
# setuptools first and no build isolation: the build then uses the pinned setuptools and downloads nothing twice.
INSTALL := $(PIP) install --constraint constraints.txt
MANIFESTS := pyproject.toml constraints.txt
# The names of the stamps hold the place of the checkout: one that was moved is installed again, which is quick.
HERE := $(shell pwd -P | cksum | cut -d ' ' -f 1)
INSTALLED_RUN := $(VENV)/.installed-run-$(HERE)
INSTALLED_DEV := $(VENV)/.installed-dev-$(HERE)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The order of prerequisites means something here: first what is missing, then the installation.
.NOTPARALLEL:
.PHONY: help install run test check docs bench campaign clean has-python has-compiler dev

help:
	@echo 'make run       install into .venv and supervise the built-in training job until it is finished'
	@echo 'make test      install what the tests need, check, and run every test that needs no GPU'
	@echo 'make check     ruff and mypy'
	@echo 'make docs      docs/faults.md and docs/diagnose.schema.json, from the catalogue'
	@echo 'make install   only install'
	@echo 'make bench     what the command, the supervisor and looking at a GPU cost, as ratios; the built-in job'
	@echo 'make campaign  the large benchmarks; results are written to docs/benchmarks.md'
	@echo 'make clean     remove caches and build folders (.venv stays; it is yours to remove)'

# --- prerequisites: say what is missing before anything is done ----------------------------------------------
# A PYTHON that was given counts alone; otherwise python3, then the newest release with wheels for every pin.
CANDIDATES := $(PYTHON)$(if $(filter file,$(origin PYTHON)), python3.14 python3.13 python3.12 python3.11)
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
FIND_PYTHON := for python in $(CANDIDATES); do \
	if "$$python" -c '$(FITS)' 2>/dev/null; then found="$$python"; break; fi; done

has-python:
	@test -x $(PY) && $(PY) -c '$(FITS)' 2>/dev/null && $(PY) -m pip --version >/dev/null 2>&1 && exit 0; \
	$(FIND_PYTHON); \
	if [ -z "$$found" ]; then \
	    echo "No Python from 3.11 to 3.14 among: $(CANDIDATES) ($$($(PYTHON) --version 2>&1 || true))." >&2; \
	    echo 'Debian 12, Ubuntu 24.04 or newer:  sudo apt install python3 python3-venv' >&2; \
	    echo 'Elsewhere:                         make PYTHON=/path/to/python3.12 ...' >&2; \
	    exit 1; \
	fi; \
	if ! "$$found" -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "$$found cannot make a virtual environment: its venv or ensurepip module is missing." >&2; \
	    echo "Debian, Ubuntu:  sudo apt install $$(basename "$$found")-venv" >&2; \
	    exit 1; \
	fi

# The tests build a stand-in for the driver's library; running needs no compiler.
has-compiler:
	@if ! command -v $(CC) >/dev/null 2>&1; then \
	    echo 'The tests need a C compiler, and there is no $(CC).' >&2; \
	    echo 'Debian, Ubuntu:  sudo apt install gcc libc6-dev' >&2; \
	    exit 1; \
	fi; \
	if ! printf '#include <stdio.h>\nint main(void) { return 0; }\n' | $(CC) -x c -o /dev/null - 2>/dev/null; then \
	    echo '$(CC) cannot build a program that includes <stdio.h>: the C library headers are missing.' >&2; \
	    echo 'Debian, Ubuntu:  sudo apt install libc6-dev' >&2; \
	    exit 1; \
	fi

# --- installation: again only when the pins have changed -----------------------------------------------------
# A .venv whose interpreter is gone (the system's Python was upgraded) is made anew.
define make-venv
@if ! { test -x $(PY) && $(PY) -c '$(FITS)' && $(PY) -m pip --version; } >/dev/null 2>&1; then \
    $(FIND_PYTHON); echo "making $(VENV) with $$found ($$("$$found" --version))"; \
    "$$found" -m venv --clear $(VENV); \
fi
@$(PY) -c 'import torch' 2>/dev/null || \
    echo 'installing torch and the rest: about 3 GB to download and 6 GB on disk where PyPI brings the CUDA build'
$(INSTALL) --quiet setuptools
endef

$(INSTALLED_RUN): $(MANIFESTS) | has-python
	$(make-venv)
	$(INSTALL) --no-build-isolation --editable '.[trainer]'
	@touch $@

$(INSTALLED_DEV): $(MANIFESTS) | has-python
	$(make-venv)
	$(INSTALL) --quiet setuptools-scm  # gpustat comes as source, and is built with it
	$(INSTALL) --no-build-isolation --editable '.[trainer,dev]'
	@touch $(INSTALLED_RUN) $@

install: $(INSTALLED_RUN)

dev: has-compiler $(INSTALLED_DEV)

# --- what it is for ------------------------------------------------------------------------------------------
run: install
	$(VENV)/bin/watchdog run $(ARGS)

docs: install
	$(PY) -P -m watchdog.render_faults > docs/faults.md
	$(PY) -P -m watchdog.render_schema > docs/diagnose.schema.json

check: $(INSTALLED_DEV)
	$(PY) -P -m ruff check watchdog trainer bench tests
	$(PY) -P -m mypy

test: dev check
	$(PY) -P -m pytest $(PYTEST_ARGS)

bench: dev
	$(PY) -P -m bench.startup $(ARGS)
	$(PY) -P -m bench.footprint $(ARGS)
	$(PY) -P -m bench.default_job $(ARGS)
	$(PY) -P -m bench.overhead $(ARGS)
	$(PY) -P -m bench.relaunch $(ARGS)

campaign: dev
	$(PY) -P -m bench.campaign $(ARGS)
	$(PY) -P -m bench.recovery --record
	$(PY) -P -m bench.endurance --record

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find watchdog trainer bench tests -name __pycache__ -type d -prune -exec rm -rf {} +
