# Everything below works from a fresh clone; what is installed already is left as it is.

export VENV ?= .venv

PREPARE := sh deploy/local/python.sh deploy/local/prepare.py
VENV_OLD := .venv-vllm-0.23
VENV_MULTIMODAL := .venv-multimodal

# For the tests with a real engine; tests/e2e/conftest.py sets the rest.
ENGINE_ENV = \
	TEST_MODEL="$(CURDIR)/.cache/models/smollm2-135m-instruct" \
	TEST_TINY_MODEL="$(CURDIR)/.cache/models/tiny-llama" \
	VLLM_NO_USAGE_STATS=1
# What needs no engine. Not even collected: the other folders, whose tests import torch.
FAST = -m pytest $(addprefix --ignore tests/,clients deploy e2e multimodal) $(PYTEST_ARGS)
E2E = -m pytest -m e2e tests/e2e --timeout 600 $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9.-]*:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Variables: PYTHON=python3.12  VENV=folder  PORT=1025  MODEL=folder  MODEL_NAME=name"
	@echo "           SERVE_ARGS='--full-text'  PYTEST_ARGS='-k name'  TORCH_INDEX=url"

.PHONY: serve
serve: ## Serve a small real model on 127.0.0.1:1025, without an accelerator
	@exec sh deploy/local/python.sh deploy/local/serve.py

.PHONY: models
models: ## Prepare the models that the demo and the tests use
	@$(PREPARE) --models

.PHONY: install
install: ## Install the gateway, vLLM for the CPU and all tools into .venv
	@$(PREPARE) --with dev --engine

.PHONY: tools
tools: # The gateway and its tools; no engine
	@$(PREPARE) --with dev

.PHONY: lint
lint: tools ## Check style, layers and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/mypy
	MYPYPATH=deploy/local $(VENV)/bin/mypy deploy/local

.PHONY: format
format: tools ## Format the code and mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

.PHONY: test-fast
test-fast: tools ## Run the tests that need no engine, in random order
	$(VENV)/bin/python $(FAST) --numprocesses 2

.PHONY: test-openapi
test-openapi: tools ## Send 2,000 requests that schemathesis makes up from /openapi.json
	OPENAPI_CASES=2000 $(VENV)/bin/python -m pytest tests/test_openapi.py $(PYTEST_ARGS)

.PHONY: coverage
coverage: tools ## Run the fast tests and show what they leave out
	$(VENV)/bin/python $(FAST) \
		--cov --cov-report=term-missing

# promtool comes in Debian's package prometheus; unpacked, so that no server is installed.
PROMTOOL := .cache/promtool/usr/bin/promtool
$(PROMTOOL):
	@mkdir -p $(@D)
	@if command -v promtool >/dev/null; then ln -sf "$$(command -v promtool)" $@; else \
		cd .cache/promtool && { apt-get -qq download prometheus || \
		{ apt-get -qq update && apt-get -qq download prometheus; }; } && \
		dpkg -x prometheus_*.deb . && rm prometheus_*.deb; fi

.PHONY: test-deploy
test-deploy: everything $(PROMTOOL) ## Render and validate the images, the Kubernetes manifests and the chart
	@$(PREPARE) --with dev --with deploy
	@$(VENV)/bin/python -c "import helm_sdkpy" 2>/dev/null || $(VENV)/bin/python -m pip install \
		--quiet --no-deps --ignore-requires-python "helm-sdkpy==0.1.32"
	$(VENV)/bin/python -m pytest tests/deploy $(PYTEST_ARGS)

.PHONY: everything
everything: # All that the tests need
	@$(PREPARE) --with dev --models

.PHONY: test-e2e
test-e2e: everything ## Run the tests with a real vLLM engine and a real model
	$(ENGINE_ENV) $(VENV)/bin/python $(E2E)

.PHONY: test
test: everything lint test-fast test-openapi test-deploy test-e2e test-clients bench-smoke ## Run all checks and tests

.PHONY: test-vllm-0.23
test-vllm-0.23: everything ## Run the engine tests on vLLM 0.23, in .venv-vllm-0.23
	@$(PREPARE) --venv $(VENV_OLD) --with test --engine 0.23.0
	$(ENGINE_ENV) $(VENV_OLD)/bin/python $(E2E)

.PHONY: test-multimodal
test-multimodal: everything ## Run the tests with real multimodal models, in .venv-multimodal (6.5 GB more)
	@$(PREPARE) --venv $(VENV_MULTIMODAL) --with test --engine 0.32.0-media --multimodal-models
	$(ENGINE_ENV) $(VENV_MULTIMODAL)/bin/python -m pytest -m multimodal tests/multimodal \
		--timeout 600 $(PYTEST_ARGS)

.PHONY: clean
clean: ## Remove environments, models, logs and the tools' caches
	rm -rf .venv .venv-vllm-* .venv-multimodal .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .coverage .coverage.* htmlcov build dist
	find proxy translators tests deploy docs -name __pycache__ -prune -exec rm -rf {} +

VENV_CLIENTS := .venv-clients

# As promtool: unpacked, nothing of the system is changed.
NGINX := .cache/nginx/usr/sbin/nginx
$(NGINX):
	@mkdir -p $(@D)
	@if command -v nginx >/dev/null; then ln -sf "$$(command -v nginx)" $@; else \
		cd .cache/nginx && { apt-get -qq download nginx || \
		{ apt-get -qq update && apt-get -qq download nginx; }; } && \
		dpkg -x nginx_*.deb . && rm nginx_*.deb; fi

.PHONY: test-clients
test-clients: everything $(NGINX) ## Run clients that we did not write, with a real engine, in .venv-clients
	@sh deploy/local/clients_env.sh $(VENV_CLIENTS)
	PATH="$(CURDIR)/$(dir $(NGINX)):$$PATH" GATEWAY_COMMAND="$(CURDIR)/$(VENV)/bin/mindie-gateway" $(ENGINE_ENV) \
		$(VENV_CLIENTS)/bin/python -m pytest tests/clients --timeout 400 $(PYTEST_ARGS)

.PHONY: bench
bench: everything ## Measure what the front end costs beside vLLM's own (quiet machine, 20 minutes)
	$(ENGINE_ENV) $(VENV)/bin/python -m tests.bench --model .cache/models/tiny-llama \
		--real-model .cache/models/smollm2-135m-instruct --out .cache/bench

.PHONY: bench-smoke
bench-smoke: everything ## A short benchmark that fails when a ratio is worse than its target
	$(ENGINE_ENV) $(VENV)/bin/python -m tests.bench --smoke --model .cache/models/tiny-llama
	$(VENV)/bin/python -m tests.bench.soak --streams 200 --seconds 20

.PHONY: soak
soak: everything ## 1,000 streams, then 256 on the real engine, ten minutes each, a third of which leave
	$(VENV)/bin/python -m tests.bench.soak --streams 1000 --out .cache/bench
	$(ENGINE_ENV) $(VENV)/bin/python -m tests.bench.soak --streams 256 \
		--model .cache/models/tiny-llama --out .cache/bench
