# Plimsoll. `make serve` runs the service, `make test` runs the tests; both do all set-up.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 1
TEST_PROCESSES ?= 2

.DEFAULT_GOAL := help
.PHONY: accuracy bench e2e-kubernetes help serve demo test lint format openapi counts clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve ## Set up, then run database, API and worker until Ctrl-C
	@exec $(BIN)/plimsoll serve --workers $(WORKERS)

demo: $(VENV)/.serve ## Run the main job against the running service
	@exec $(BIN)/plimsoll demo

test: $(VENV)/.test ## Set up, then run the whole test suite
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup

lint: $(VENV)/.test ## Check style, types and the import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

openapi: $(VENV)/.serve ## Write openapi.yaml from the application
	$(BIN)/python -m api.openapi

counts: $(VENV)/.test ## Compare every model's parameters with transformers and the published counts
	$(BIN)/python benchmarks/parameter_counts.py

accuracy: $(VENV)/.test ## Compare the planners with every public measurement
	$(BIN)/python -m benchmarks.accuracy

bench: $(VENV)/.test ## Time the search, the planning request, the quantizers and admission
	$(BIN)/python -m benchmarks.search
	$(BIN)/python benchmarks/quantization.py
	$(BIN)/python benchmarks/quantized_checkpoint.py
	$(BIN)/python -m benchmarks.admission

e2e-kubernetes: $(VENV)/.test ## Run the admission webhook behind a real kube-apiserver (builds it once)
	$(BIN)/python -m benchmarks.e2e_kubernetes

clean: ## Remove the virtual environment and caches (not the data in .plimsoll)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Plimsoll needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) (about a minute the first time) ..."
	$(PIP_INSTALL) --editable '.[worker]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) for the tests (about a minute the first time) ..."
	$(PIP_INSTALL) --editable '.[worker,test]'
	@touch $@ $(VENV)/.serve
