# Everything a person or CI does here. Needs Python 3.11 or newer, git and make; each target
# sets up what it needs. `make help` lists them.

.SILENT:
.NOTPARALLEL:
unexport PYTHONDONTWRITEBYTECODE # what pytest compiles is kept for the next worker and the next run
.PHONY: help setup run test suite rest compiled check shape bench eval promises inventory diagrams lock clean
.DEFAULT_GOAL := help

BIN := .venv/bin
PY := $(BIN)/python
CORE := .build/promises-core.json
RESULTS := .build/promises.json
PYTEST = $(PY) -m pytest -q -n $(WORKERS) --dist worksteal --promises-json=$(RESULTS) $(PYTEST_ARGS)
WORKERS ?= 4
PYTEST_ARGS ?=
EVAL_ARGS ?=
STRICT := $(if $(filter --package-skips%,$(PYTEST_ARGS)),,$(filter --strict-skips,$(PYTEST_ARGS)))

help: ## this list
	sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

run: .venv/.run ## talk to the agent, with the model it finds (else it fetches a small one); takes a pipe too
	$(PY) -m compileall -q holdfast >&2
	HOLDFAST_PULL=$${HOLDFAST_PULL-1} exec $(BIN)/holdfast

test: check rest ## run every check and test, then show which promises they prove

rest: compiled # what `check` has not run
	$(PYTEST) --ignore=tests/core
	$(PY) -m scripts.promises $(STRICT:--strict-skips=--strict) $(CORE) $(RESULTS)

suite: compiled ## all the tests, without the checks
	$(PYTEST)
	$(PY) -m scripts.promises $(STRICT:--strict-skips=--strict) $(RESULTS)

compiled: setup # once, and not in each of the processes that tests start
	$(PY) -m compileall -q holdfast tests

check: setup ## the fast loop: format, lint, types, imports, documents, the core with branch coverage
	$(BIN)/ruff format --quiet --check .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(PY) -m scripts.state_machines --check
	$(PY) -m scripts.registry_hosts
	$(PY) -m scripts.inventory
	$(PY) -m scripts.shape --check
	$(PY) -m scripts.path --check
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 2 --dist worksteal --promises-json=$(CORE) tests/core
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered

shape: setup ## files, lines and limits of the product; fails where a limit is passed
	$(PY) -m scripts.shape

bench: setup ## measure, beside the same figures of a bare server
	$(PY) -m bench

eval: setup ## how well the configured model works: tasks with real tools; EVAL_ARGS="--model M --only TEXT"
	$(PY) -m evals $(EVAL_ARGS)

promises: setup ## promise → kept or owed → tests → passed, from the last `make test`
	test -f $(RESULTS) || $(MAKE) test
	$(PY) -m scripts.promises $(wildcard $(CORE)) $(RESULTS)

inventory: setup ## update the list of tests; a removed test needs a reason
	$(PY) -m scripts.inventory --write

diagrams: setup ## redraw docs/state-machines.md
	$(PY) -m scripts.state_machines

setup: .venv/.stamp ## install the development tools into .venv, pinned

.venv/.run: requirements.lock scripts/setup.sh
	sh scripts/setup.sh run >&2 </dev/null
	touch $@

.venv/.stamp: requirements.lock requirements-dev.lock scripts/setup.sh
	sh scripts/setup.sh dev >&2 </dev/null
	touch .venv/.run $@

lock: ## update the pinned versions (needs uv)
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-header pyproject.toml -o requirements.lock
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-header --extra dev --constraint requirements.lock pyproject.toml -o requirements-dev.lock

clean: ## remove everything generated here, including .venv
	rm -rf .venv .build .coverage .coverage.* .hypothesis .mypy_cache .ruff_cache .import_linter_cache dist
	find holdfast tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
