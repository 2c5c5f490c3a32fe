# Everything a person or CI does here. Needs Python 3.11 or newer, git and make; each target
# sets up what it needs. `make help` lists them.

.SILENT:
.NOTPARALLEL:
.PHONY: help setup run test check bench promises inventory diagrams lock clean
.DEFAULT_GOAL := help

BIN := .venv/bin
PY := $(BIN)/python
RESULTS := .build/promises.json
WORKERS ?= 3
PYTEST_ARGS ?=
STRICT := $(if $(filter --strict-skips,$(PYTEST_ARGS)),--strict)

help: ## this list
	sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18

run: setup ## talk to the agent, with whatever model there is; piped words work too
	$(PY) -m compileall -q holdfast >&2
	exec $(BIN)/holdfast

test: check ## everything that must pass, then what it proves
	$(PY) -m pytest -q -n $(WORKERS) --dist worksteal --promises-json=$(RESULTS) $(PYTEST_ARGS)
	$(PY) -m scripts.promises $(STRICT) $(RESULTS)

check: setup ## the fast loop: format, lint, types, imports, documents, the core with all its branches
	$(BIN)/ruff format --quiet --check .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(PY) -m scripts.state_machines --check
	$(PY) -m scripts.registry_hosts
	$(PY) -m scripts.inventory
	$(BIN)/coverage run -m pytest -q tests/core
	$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered

bench: setup ## the figures, beside those of the bare path
	$(PY) -m bench

promises: setup ## promise → kept or owed → tests → passed, from the last `make test`
	test -f $(RESULTS) || $(MAKE) test
	$(PY) -m scripts.promises $(RESULTS)

inventory: setup ## list the tests anew; none may go without a reason
	$(PY) -m scripts.inventory --write

diagrams: setup ## draw docs/state-machines.md anew
	$(PY) -m scripts.state_machines

setup: .venv/.stamp ## fill .venv with everything, pinned

.venv/.stamp: pyproject.toml requirements.lock requirements-dev.lock scripts/setup.sh
	sh scripts/setup.sh >&2 </dev/null
	touch $@

lock: ## choose versions anew (needs uv)
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-header pyproject.toml -o requirements.lock
	printf '%s\n' "$$(sed -n 's/^requires = \["\(hatchling.*\)"\]/\1/p' pyproject.toml)" editables | \
	  uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-header --extra dev --constraint requirements.lock pyproject.toml - -o requirements-dev.lock

clean: ## take away what was made here, .venv too
	rm -rf .venv .build .coverage .hypothesis .mypy_cache .ruff_cache .import_linter_cache dist
	find holdfast tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +
