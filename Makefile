# Two commands do all set-up on a fresh machine: `make demo` and `make test`.
# Every install goes through constraints.txt, the exact versions the tests have seen.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-real test-slow test-properties test-adversarial test-extras test-zoo lint format docs bench figures clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.base ## Install, run the main job on embedded data (a minute and a half), write a report
	@$(BIN)/normscope demo --out normscope-out

test: lint $(VENV)/.browser ## Install what the tests need, then lint and run every quick test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not real_data and not slow and not extras and not zoo"

test-real: $(VENV)/.test ## Tests on the real MNIST and CIFAR-10 (NORMSCOPE_DATA=folder)
	$(BIN)/python -m pytest -m real_data

test-slow: $(VENV)/.test ## Tests that take minutes
	$(BIN)/python -m pytest -m slow

test-properties: $(VENV)/.test ## Property tests on new random cases, other ones at every call
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --hypothesis-profile=new tests/properties

CASES ?= 3000
test-adversarial: $(VENV)/.test ## New random networks, interrupts and damaged files, CASES of each; prints its seed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/adversarial --adversarial-cases $(CASES)

test-extras: $(VENV)/.test ## Install Ray, Dask, transformers, wandb and MLflow, and test with them
	$(PIP) -e '.[test,ray,dask,transformers,wandb,mlflow]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m extras

test-zoo: $(VENV)/.test ## Try every feature on small and on real networks, and write the table of supported models
	$(PIP) -e '.[test,zoo]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/zoo -m zoo --zoo-results docs/supported_models.json; \
		status=$$?; $(BIN)/python docs/supported_models.py && exit $$status

lint: $(VENV)/.test ## Style (ruff) and types (mypy --strict)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.test ## Rewrite the sources in the house style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.docs ## Build the documentation, strictly, into site/, which opens from disk
	$(BIN)/mkdocs build --strict
	@echo "open site/index.html"

bench: $(VENV)/.base ## Benchmarks against torch and the textbook loop, one after the other
	$(BIN)/python benchmarks/layers.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/probes.py
	$(BIN)/python benchmarks/decoupled.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/sweep.py

figures: $(VENV)/.base ## Draw the figures of the README, tutorial, concepts and notebooks again
	$(BIN)/normscope demo --out normscope-out
	cp normscope-out/demo.svg docs/images/demo.svg
	$(BIN)/python docs/images/limits.py normscope-out/demo.nc
	$(BIN)/python docs/concepts/figures.py
	$(BIN)/python docs/notebooks.py

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) site dist build normscope-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says which extras are installed; a newer pyproject.toml or constraints.txt makes it stale.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "normscope needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing into $(VENV), about two minutes, once ..."
	@$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[test]'
	@touch $@

# Without a browser the tests of the report fail, and say what to install; all others run.
$(VENV)/.browser: | $(VENV)/bin/python
	@if .ci/browser; then touch $@; fi

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[docs]'
	@touch $@
