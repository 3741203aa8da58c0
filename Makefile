# Plimsoll. `make serve` runs the service, `make test` runs the tests; both do all set-up.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
AUDIT_VENV ?= $(VENV)-audit
VLLM_VENV ?= $(VENV)-vllm
CONTRACT_TOOLS ?= $(VENV)-contract
NPM ?= npm
LOCK_OPTIONS := --quiet --no-annotate --no-header --generate-hashes --python-version 3.11 \
	--constraint constraints.txt --extra traces
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 1
TEST_PROCESSES ?= 2
JOBS ?= 1000
FUZZ_MINUTES ?= 10
BENCH_TRACES ?= 8b-fsdp2-8192-none 8b-fsdp2-8192-selective 8b-accelerate-8192-full 8b-fsdp2-tp2-dp4-full \
	70b-fsdp2-64-8192-full 70b-fsdp2-tp8-dp8-full 70b-megatron-tp8-pp2
API_CASES ?= 50000
E2E_PICTURES ?= .screenshots
TEST_OPTIONS ?=

.DEFAULT_GOAL := help
.PHONY: accuracy audit bench clean contract counts demo docs e2e-kubernetes e2e-web famous-runs faults faults-found format fuzz fuzz-api help lint lock openapi proofs-of properties same-answers sbom serve soak test test-fast

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve ## Set up, then run database, API and worker until Ctrl-C
	@exec $(BIN)/plimsoll serve --workers $(WORKERS)

demo: $(VENV)/.serve ## Run the main job against the running service
	@exec $(BIN)/plimsoll demo

test: $(VENV)/.test ## Set up, then run the whole test suite
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup $(TEST_OPTIONS)

test-fast: $(VENV)/.test ## Run in a minute the tests that need no torch, database, browser or process
	$(BIN)/python -m pytest --fast -p no:schemathesis --numprocesses $(TEST_PROCESSES) --dist loadfile $(TEST_OPTIONS)

e2e-web: $(VENV)/.test ## Drive the web pages in headless Chromium; pictures go to .screenshots
	@[ -n "$$CHROMIUM" ] || command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	  || { echo "There is no Chromium: install Debian's chromium, or name one in CHROMIUM." >&2; exit 1; }
	PLIMSOLL_SCREENSHOTS=$(E2E_PICTURES) $(BIN)/python -m pytest tests/web -m browser

lint: $(VENV)/.test ## Check style, types and the import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

openapi: $(VENV)/.serve ## Write openapi.yaml from the application
	$(BIN)/python -m plimsoll.api.openapi

contract: $(VENV)/.test $(CONTRACT_TOOLS)/.tools ## Hold openapi.yaml against three linters (needs Node.js and npm)
	$(BIN)/openapi-spec-validator openapi.yaml
	REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true $(CONTRACT_TOOLS)/node_modules/.bin/redocly lint --extends recommended-strict openapi.yaml
	$(CONTRACT_TOOLS)/node_modules/.bin/spectral lint --ruleset deploy/spectral.yaml --fail-severity hint openapi.yaml

docs: $(VENV)/.test ## Build the documentation into site/, its links checked
	$(BIN)/properdocs build --strict

counts: $(VENV)/.test ## Compare every model's parameters with transformers and the published counts
	$(BIN)/python benchmarks/parameter_counts.py

accuracy: $(VENV)/.test ## Compare the planners with every public measurement
	$(BIN)/python -m benchmarks.accuracy

famous-runs: $(VENV)/.test ## Plan published trainings as they ran, and with their layout open
	$(BIN)/python -m benchmarks.famous_runs

properties: $(VENV)/.test ## Look for counterexamples to the laws of planning among many random questions
	PLIMSOLL_PROPERTIES=wide $(BIN)/python -m pytest -p no:cacheprovider --numprocesses $(TEST_PROCESSES) tests/properties

faults: $(VENV)/.test ## Kill, cut off, fill up and misdate real processes (about half an hour)
	$(BIN)/python -m pytest -m faults -p no:xdist tests/faults

faults-found: $(VENV)/.test ## Ask the service at PLIMSOLL_URL (or on port 8000) what earlier versions answered wrongly
	$(BIN)/python -m pytest -p no:cacheprovider benchmarks/faults_found

same-answers: $(VENV)/.test ## Ask this tree and the commit REF the same, and say which answers differ
	$(BIN)/python -m benchmarks.same_answers $(if $(REF),--ref $(REF))

proofs-of: $(if $(filter vllm,$(STACK)),$(VLLM_VENV)/.tools,$(VENV)/.test) ## Run the own code of STACK (vllm or a training stack) for a few plans, and say how far they were
	$(if $(filter vllm,$(STACK)),$(VLLM_VENV)/bin/python -m benchmarks.vllm_own_code,$(BIN)/python -m benchmarks.proofs_of $(or $(STACK),$(error name a stack: make proofs-of STACK=megatron)))

soak: $(VENV)/.test ## Send JOBS jobs through random kills of API, worker and database, and count them
	$(BIN)/python -m tests.faults.soak --jobs $(JOBS)

fuzz: $(VENV)/.test ## Fuzz each reader of foreign input for FUZZ_MINUTES minutes
	$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES)

fuzz-api: $(VENV)/.test ## Send API_CASES requests made up from the contract
	$(BIN)/python -m tests.fuzz.api_cases --cases $(API_CASES)

bench: $(VENV)/.test ## Time the search, the planning request, the service under load, traces, the quantizers and admission
	$(BIN)/python -m benchmarks.search
	$(BIN)/python benchmarks/serving_speed.py
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.load.costs
	$(BIN)/python -m benchmarks.load.overload
	$(BIN)/python -m benchmarks.load.memory
	$(BIN)/python -m benchmarks.trace $(BENCH_TRACES)
	$(BIN)/python benchmarks/quantization.py
	$(BIN)/python benchmarks/quantized_checkpoint.py
	$(BIN)/python -m benchmarks.admission

e2e-kubernetes: $(VENV)/.test ## Run the admission webhook behind a real kube-apiserver (builds it once)
	$(BIN)/python -m benchmarks.e2e_kubernetes

lock: $(AUDIT_VENV)/.tools ## Write the locks with hashes that the images are installed from
	$(AUDIT_VENV)/bin/uv pip compile $(LOCK_OPTIONS) pyproject.toml -o requirements.lock
	$(AUDIT_VENV)/bin/uv pip compile $(LOCK_OPTIONS) pyproject.toml deploy/worker.in -o requirements-worker.lock

audit: $(AUDIT_VENV)/.tools ## Look the locked versions up among known vulnerabilities
	$(AUDIT_VENV)/bin/pip-audit --requirement requirements-worker.lock --require-hashes --disable-pip \
		--progress-spinner off --timeout 10

sbom: $(AUDIT_VENV)/.tools ## Write plimsoll.cdx.json, the bill of materials (CycloneDX) of both images
	(cat requirements-worker.lock; grep -o 'torch==[0-9.]*' pyproject.toml) | $(AUDIT_VENV)/bin/cyclonedx-py requirements \
		--pyproject pyproject.toml --output-reproducible --of JSON --output-file plimsoll.cdx.json -

clean: ## Remove the virtual environment and caches (not the data in .plimsoll)
	rm -rf $(VENV) $(AUDIT_VENV) $(VLLM_VENV) $(CONTRACT_TOOLS) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .same-answers *.egg-info build

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Plimsoll needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) (about a minute the first time) ..."
	$(PIP_INSTALL) --editable '.[worker,fp8,accelerate,deepspeed,megatron]'
	@# Of these a trace runs models and training code, which need none of what their data need besides.
	$(PIP_INSTALL) --no-deps torchtune trl
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Setting up $(VENV) for the tests (about a minute the first time) ..."
	$(PIP_INSTALL) --editable '.[worker,fp8,accelerate,deepspeed,megatron,test]'
	@# Only their configs and command lines are read, which need none of what they depend on besides.
	$(PIP_INSTALL) --no-deps dlrover litgpt torchtitan torchtune trl
	@touch $@ $(VENV)/.serve

$(AUDIT_VENV)/.tools: deploy/audit-tools.txt
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement deploy/audit-tools.txt
	@touch $@

# vLLM beside the packages of $(VENV), which its own pins contradict: its Python code alone runs, on fake tensors.
$(VLLM_VENV)/.tools: deploy/vllm-own-code.txt $(VENV)/.test
	@echo "Setting up $(VLLM_VENV) (vLLM's wheel has half a gigabyte) ..."
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement deploy/vllm-own-code.txt
	$(VLLM_VENV)/bin/python -m benchmarks.vllm_own_code.beside $(abspath $(VENV))
	@touch $@

$(CONTRACT_TOOLS)/.tools: deploy/contract-tools.txt
	@command -v $(NPM) >/dev/null || { echo "There is no npm: install Node.js 20.19 or newer, or name one in NPM." >&2; exit 1; }
	$(NPM) install --prefix $(CONTRACT_TOOLS) --no-audit --no-fund --silent $$(grep -v '^#' deploy/contract-tools.txt)
	@touch $@
