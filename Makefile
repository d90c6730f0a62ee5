# softvq: two commands do the two main things: `make compare` and `make test`. Each sets up what it needs.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

PRESET ?= quick
OUT ?= runs/compare-$(PRESET)
# What is not given here is what the preset says.
SEEDS ?=
METHODS ?=
FRESH ?=
EXAMPLES ?= 50000
MINUTES ?= 60
OVERRIDES ?=

# The torch that built archives are tried with, and where the lowest versions are installed.
TORCH ?= torch
LOWEST ?= .venv-lowest
# Kills of each kind of writer.
KILLS ?= 50

.PHONY: help install compare prior test test-behaviour test-refusals fuzz mutate long-run coverage processes kill audit lint docs dist lowest clean

help: ## Show these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
	@echo
	@echo 'make compare PRESET=reference SEEDS=3 METHODS=softvq,lucid-ema OUT=folder'

install: $(STAMP) ## Create .venv with softvq, its extras and torch

$(STAMP): pyproject.toml .ci/constraints.txt
	@echo 'Installing PyTorch and what softvq is compared with and tested against, some GB: this is silent for some minutes.'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt torch torchvision
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt -e '.[dev]'
	@touch $(STAMP)

compare: install ## Train SoftVQ and its rivals on CIFAR-10 and compare their hard codes
	$(BIN)/python -m eval compare $(PRESET) --out '$(OUT)' $(strip $(if $(SEEDS),--seeds '$(SEEDS)') \
	  $(if $(METHODS),--methods '$(METHODS)') $(if $(FRESH),--fresh) $(OVERRIDES))

prior: install ## Train the same small generator on tokens of SoftVQ and of a rival, and compare
	$(BIN)/python -m eval prior --preset $(PRESET) --tokenizers '$(OUT)' $(strip \
	  $(if $(METHODS),--methods '$(METHODS)') $(OVERRIDES))

test: install ## Format check, lint, types, import contract, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory -j 2 test-behaviour test-refusals

# Halves of about the same time, one a core.
test-behaviour:
	$(BIN)/python -m pytest -q -m 'not compiled and not bad_input and not gpu and not triton' --jaxtyping-packages=softvq,tests.shapes.typechecker

test-refusals:
	$(BIN)/python -m pytest -q -m '(compiled or bad_input) and not gpu and not triton'
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -m triton tests/functional/backends/test_triton.py tests/functional/backends/test_triton_contract.py

processes: install ## Two processes by torchrun: quantizers, measures, exports, training
	$(BIN)/python -m pytest -q tests/processes tests/nn/test_processes.py tests/measures/test_state.py tests/export/test_processes.py

kill: install ## kill -9 every kind of writer KILLS times (50) at any moment, and read what is left
	SOFTVQ_KILLS=$(KILLS) $(BIN)/python -m pytest -q -s --timeout=0 tests/test_kills.py

audit: install ## Ask pip-audit about every package that is installed here; wants an open network, and fails without
	test -x .audit/bin/pip-audit || ( $(PYTHON) -m venv .audit && \
	  .audit/bin/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt pip-audit )
	$(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable > .audit/installed.txt
	.audit/bin/pip-audit --strict --no-deps --disable-pip -r .audit/installed.txt

fuzz: install ## New examples for the neighbours of all cases, for an hour (EXAMPLES=50000 MINUTES=60)
	$(BIN)/python -m tests.cases.fuzz --examples $(EXAMPLES) --minutes $(MINUTES)

mutate: install ## Break the core thirty times and see whether the tests notice
	$(BIN)/python -m tests.mutation.run

long-run: install ## 20,000 steps, eager and compiled: memory, counters, temperature
	$(BIN)/python -m tests.cases.long_run

coverage: install ## Which lines of softvq the tests run, and how long the slowest took
	$(BIN)/python -m pytest -q -m 'not gpu and not triton' --ignore=tests/eval --ignore=tests/train --cov=softvq --cov-report= --durations=15 tests softvq
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -m triton --cov=softvq --cov-append --cov-report=term-missing:skip-covered \
	  tests/functional/backends/test_triton.py tests/functional/backends/test_triton_contract.py

lint: install ## Put the code in format and show what lint finds
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install ## Build the pages of docs/ into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

dist: install ## Build wheel and sdist, install each into an empty environment, use it there
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python .ci/check_dist.py dist --torch '$(TORCH)'

# tests/nn/test_attach.py wants accelerate, which is no part of the core. On torch 2.5 vmap over a
# custom operator loses gradients: only the reference back end goes with it there;
# and it has no mean squared error in bfloat16, which a host of the tests takes.
lowest: ## Test the core with the lowest versions allowed (Python 3.10 to 3.12: torch 2.5 has no others)
	test -x '$(LOWEST)/bin/python' || $(PYTHON) -m venv '$(LOWEST)'
	'$(LOWEST)/bin/python' -m pip install --quiet $$($(PYTHON) .ci/lowest.py) \
	  pytest pytest-timeout hypothesis beartype
	'$(LOWEST)/bin/python' -m pip install --quiet --no-deps -e .
	'$(LOWEST)/bin/python' -m pytest -q -m 'not compiled and not gpu and not triton' -k 'not vmap_over_heads and not bfloat16_host' \
	  tests/functional tests/nn tests/models tests/export/test_codebook.py tests/export/test_tokens.py \
	  tests/export/test_writer.py tests/hosts/test_swapping.py --ignore tests/nn/test_attach.py

clean: ## Remove what these commands made here: .venv, runs, caches
	rm -rf $(VENV) .venv-lowest .audit runs build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
