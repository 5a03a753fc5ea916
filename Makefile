# Everything a fresh clone needs. Run `make` alone to see the targets.

PYTHON  ?= python3
ARGS    ?=
BENCHES ?= queue http fanout relay journal pipeline

# Debian packages that the tests need, names separated by spaces. This browser has no windows, so it needs half of Chromium's CPU.
DEBIAN_PACKAGES := chromium-headless-shell

UV_VERSION := 0.13.7
BIN        := .venv/bin
STAMP      := .venv/.setup-done
NATIVE     := .venv/.native-done

# What pip and npm print goes to a log; after a failure its end is shown.
SETUP_LOG   := build/setup.log
CONSOLE_LOG := build/console.log
NATIVE_LOG  := build/native.log
SYSTEM_LOG  := build/system.log
LOCK_PARTS  := build/requirements
shown        = { tail -n 40 $(1) >&2; echo "the whole output: $(1)" >&2; false; }

# The console is built where there is Node 20 or newer; everything else works without it.
NODE            := $(shell node -p '+process.versions.node.split(".")[0] >= 20' 2>/dev/null)
CONSOLE_PAGE    := src/penstock/console/index.html
CONSOLE_SOURCES := $(shell find console -path console/node_modules -prune -o -path console/test -prune -o -type f -print 2>/dev/null)
CONSOLE         := $(if $(filter true,$(NODE)),$(CONSOLE_PAGE),nodeless)

.DEFAULT_GOAL := help
.PHONY: help setup up demo test test-more checks lint bench lock clean system nodeless

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## install everything into .venv; does nothing when it is up to date
	@$(MAKE) --no-print-directory -sj2 $(NATIVE) $(CONSOLE)

# pip fetches and unpacks one package after the other, so four parts of the lock are installed at a time; it names every dependency.
# The stamp is written last, so an interrupted set-up starts again instead of passing for a whole one.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Penstock needs Python 3.11 or newer, and \`$(PYTHON)\` is missing or older" >&2; \
	  echo "hint: name another one, as in \`make setup PYTHON=python3.12\`" >&2; exit 1; }
	@echo "==> 1/3 making .venv with $$($(PYTHON) --version)"
	@mkdir -p $(dir $(SETUP_LOG))
	@$(PYTHON) -m venv .venv > $(SETUP_LOG) 2>&1 || $(call shown,$(SETUP_LOG)) || { \
	  echo "error: could not make a virtual environment" >&2; \
	  echo "hint: on Debian and Ubuntu, install the package python3-venv" >&2; exit 1; }
	@echo "==> 2/3 installing the locked dependencies (a minute or so with a cold cache)"
	@awk -v into=$(LOCK_PARTS) '/^[a-zA-Z]/ { part++ } part { print > (into "." part % 4) }' requirements.lock
	@printf '%s\n' $(LOCK_PARTS).0 $(LOCK_PARTS).1 $(LOCK_PARTS).2 $(LOCK_PARTS).3 | xargs -P 4 -I {} $(BIN)/python -m pip install \
	  --disable-pip-version-check --no-compile --no-deps --require-hashes -r {} >> $(SETUP_LOG) 2>&1 || $(call shown,$(SETUP_LOG)) || { \
	  echo "error: could not install requirements.lock" >&2; \
	  echo "hint: the first set-up needs a Python package index; check the network, the proxy and pip's settings, then run \`make setup\` again" >&2; exit 1; }
	@echo "==> 3/3 installing penstock itself"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-index --no-deps --no-build-isolation --editable . \
	  >> $(SETUP_LOG) 2>&1 || $(call shown,$(SETUP_LOG))
	@touch $(STAMP)
	@echo "==> ready: $(BIN)/penstock"

# An optional wheel in C that makes the JSON checks faster. Everything works without it, so a failure is a warning.
$(NATIVE): $(STAMP) $(wildcard native/*.*)
	@mkdir -p $(dir $(NATIVE_LOG))
	@if reason=$$($(BIN)/python native/hatch_build.py); then \
	  echo "==> compiling the JSON checks in C"; \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-index --no-deps --no-build-isolation --force-reinstall ./native \
	    > $(NATIVE_LOG) 2>&1 || { tail -n 5 $(NATIVE_LOG) >&2; \
	    echo "warning: could not compile native/penstock_native.c; the JSON checks run in Python" >&2; }; \
	else echo "==> the JSON checks run in Python: $$reason"; fi
	@touch $(NATIVE)

# Without a package registry the rest is of use all the same, so this says what is missing and lets the set-up go on.
$(CONSOLE_PAGE): $(CONSOLE_SOURCES)
	@echo "==> building the console with Node $$(node --version)"
	@mkdir -p $(dir $(CONSOLE_LOG))
	@(cd console && npm ci --no-audit --no-fund --loglevel=error && npm run --silent build -- --logLevel warn && \
	  touch ../$@) > $(CONSOLE_LOG) 2>&1 || $(call shown,$(CONSOLE_LOG)) || { \
	  echo "warning: could not build the console; the broker has no page at / until that works" >&2; \
	  echo "hint: it needs an npm registry; check the network, the proxy and npm's settings, then run \`make setup\` again" >&2; }

nodeless:
	@test -f $(CONSOLE_PAGE) || echo "==> no console: it is built where there is Node 20 or newer; everything else works without it"

up: setup ## set up, then run the broker until Ctrl-C (options: ARGS="--http localhost:0")
	@exec $(BIN)/penstock up $(ARGS)

demo: setup ## the same with sample traffic on every door
	@exec $(BIN)/penstock up --demo $(ARGS)

test: ## set up, then check style, types and layers and run every test (some: ARGS=tests/core)
	@$(MAKE) --no-print-directory -sj3 system $(NATIVE) $(CONSOLE)
	$(if $(strip $(ARGS)),@$(MAKE) --no-print-directory checks)
	$(BIN)/python -m $(if $(strip $(ARGS)),pytest $(ARGS),tests.parts)

test-more: setup ## the slow tests: many seeds, every bench, a Spark cluster
	$(BIN)/python -m pytest -m more $(ARGS)

lint: setup checks ## check style, types and layers only

# `make test` runs these side by side with the tests.
checks:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@test ! -d console/node_modules || { cd console && npm run --silent check; }

bench: setup ## run the benchmarks (choose with BENCHES="queue http")
	@set -e; for bench in $(BENCHES); do $(BIN)/penstock bench $$bench $(ARGS); done

# uv lives apart from .venv, so that a lock that cannot be installed can still be made anew.
# The header, the annotations and the index are left out: they would name the machine that made the lock.
lock: ## resolve the dependencies again and rewrite requirements.lock
	@test -x .lock-venv/bin/uv || { $(PYTHON) -m venv .lock-venv && \
	  .lock-venv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); }
	@echo '# Written by `make lock`: what Penstock runs on and is developed with, for every platform.' > requirements.lock.new
	@.lock-venv/bin/uv pip compile pyproject.toml --extra spark --extra connect --extra streams --extra cluster --extra bench --group dev --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-header --no-annotate --quiet >> requirements.lock.new || { \
	  rm -f requirements.lock.new; \
	  echo "error: could not resolve the dependencies; requirements.lock is unchanged" >&2; exit 1; }
	@mv requirements.lock.new requirements.lock
	@echo "==> wrote requirements.lock"

# The browser tests need a Chrome or Chromium. Where this may not install one, they use any that the machine has, or are left out.
system:
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then exit 0; fi; \
	missing=; for package in $(DEBIAN_PACKAGES); do \
	  dpkg -s "$$package" >/dev/null 2>&1 || missing="$$missing $$package"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	echo "==> installing system packages:$$missing"; mkdir -p $(dir $(SYSTEM_LOG)); \
	{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; } > $(SYSTEM_LOG) 2>&1 || { \
	  tail -n 5 $(SYSTEM_LOG) >&2; \
	  echo "warning: could not install$$missing; the browser tests use any Chrome or Chromium of this machine" >&2; }

clean: ## back to a fresh clone, except for penstock-data
	rm -rf console/node_modules src/penstock/console
	rm -rf .venv .lock-venv build native/build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
