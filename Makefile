# The commands of this project. `make help` lists them.
#
# PYTHON=/path/to/python3.11 picks the Python; VENV=/path picks where the environment goes.
# PYTEST_ARGS="-k name" and DEMO_ARGS="--port-base 0" are passed on; WORKERS=1 runs tests one after another.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Hundreds of processes are started by the tests. Where this is set, each would compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

VENV ?= .venv
# The first Python that will do: 3.11 to 3.14. With none of them, python3 is run and says what is wrong.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null && echo $$p && break; \
	done || echo python3)
BIN := $(VENV)/bin
STAMP := $(VENV)/oncluster-stamp
# Tests of one file stay in one worker: they share servers. tests/conftest.py says which files begin. Three workers
# for two processors, because a third of the slow tests' time is waiting.
WORKERS ?= 3
PARALLEL := -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Fast tests do not wait: a third worker would only import them all once more.
FAST_WORKERS := $(if $(filter 3,$(WORKERS)),-n 2)

# `docker compose` where Docker has it, else docker-compose of before version 2.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
PROFILES := --profile engine --profile clickhouse --profile etcd --profile demo

.PHONY: help venv demo up down status test test-extended check format lint types imports test-fast lock clean bench
.PHONY: compose-build compose-up compose-demo compose-down compose-clean test-compose

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## make the virtual environment with the locked packages

$(STAMP): requirements.lock pyproject.toml tools/make_venv.py
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null || { \
		echo "make venv: no Python 3.11 to 3.14 found ($(PYTHON) is $$("$(PYTHON)" --version 2>&1 | head -n 1 || true))." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11 venv" >&2; exit 1; }
	@"$(PYTHON)" tools/make_venv.py "$(VENV)"

demo: $(STAMP) ## ZooKeeper, six nodes and Airflow: migrate, show, stop
	@"$(BIN)/oncluster" demo $(DEMO_ARGS)

up: $(STAMP) ## the same, and leave it running
	@"$(BIN)/oncluster" up --demo $(UP_ARGS)

down: $(STAMP) ## stop what `make up` started
	@"$(BIN)/oncluster" down

status: $(STAMP) ## show what runs
	@"$(BIN)/oncluster" status

test: check ## all but the extended tests (a quarter of an hour on two fast cores, 30 minutes on slow ones)
	@echo "== slow tests"
	@"$(BIN)/python" -m pytest -m "slow and not extended" $(PARALLEL) $(PYTEST_ARGS)
	@echo "Left out: more seeds, kills and variants of what ran here. \`make test-extended\` runs them, as CI does."

test-extended: $(STAMP) ## more seeds, kills and variants of what `make test` runs (half an hour)
	@echo "== extended tests"
	@"$(BIN)/python" -m pytest -m extended $(PARALLEL) $(PYTEST_ARGS)

# Two at once, begun in this order: mypy, one process with half a minute of work where it has no cache, goes on
# beside the tests.
check: $(STAMP) ## format, lint, types, import rules and the fast tests (under 2 minutes)
	@$(MAKE) --no-print-directory -j 2 format lint types imports test-fast

format: $(STAMP)
	@echo "== ruff format"
	@"$(BIN)/ruff" format --check --quiet . || { echo "Run: $(BIN)/ruff format ."; exit 1; }

lint: $(STAMP)
	@echo "== ruff check"
	@"$(BIN)/ruff" check --quiet --no-cache .

types: $(STAMP)
	@echo "== mypy --strict"
	@"$(BIN)/mypy" --no-error-summary

imports: $(STAMP)
	@echo "== import-linter"
	@"$(BIN)/lint-imports" >/dev/null || "$(BIN)/lint-imports"

test-fast: $(STAMP)
	@echo "== fast tests"
	@"$(BIN)/python" -m pytest -m "not slow and not extended" $(PARALLEL) $(FAST_WORKERS) $(PYTEST_ARGS)

lock: ## re-make requirements.lock from pyproject.toml (LOCK_ARGS=--upgrade for the newest of everything)
	@"$(BIN)/uv" pip compile pyproject.toml --extra dev --universal --python-version 3.11 $(LOCK_ARGS) --quiet \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file requirements.lock

bench: $(STAMP) ## the measurements of benchmarks/
	@for b in benchmarks/[!_]*.py; do b=benchmarks.$$(basename $$b .py); echo "== $$b"; "$(BIN)/python" -m $$b; done

# One service of each image: the others with the same image would only be told that it is there.
compose-build: ## docker-compose: build the images
	@$(COMPOSE) build postgres zookeeper1 $(if $(findstring clickhouse,$(COMPOSE_PROFILES)),clickhouse01) \
		$(if $(findstring etcd,$(COMPOSE_PROFILES)),etcd)

compose-up: compose-build ## docker-compose: PostgreSQL, ZooKeepers, nodes, Spark and Airflow; returns when all are healthy
	@$(COMPOSE) up -d
	@"$(PYTHON)" compose/wait.py $(COMPOSE)
	@echo "Airflow: http://$$($(COMPOSE) port airflow-api-server 8080)  user admin, password as in .env"

compose-demo: ## docker-compose: migrate through Airflow, load, compare replicas
	@$(COMPOSE) run --rm demo

compose-down: ## docker-compose: stop and remove the containers; data stay
	@$(COMPOSE) $(PROFILES) down

compose-clean: ## docker-compose: the same with all data and the images
	@$(COMPOSE) $(PROFILES) down --volumes --rmi all

test-compose: $(STAMP) ## build and start docker-compose.yaml for real, use it, hurt it (about ten minutes)
	@ONCLUSTER_COMPOSE=1 "$(BIN)/python" -m pytest -v tests/compose $(PYTEST_ARGS)

clean: down ## remove the run directory and caches (not the environment)
	@rm -rf .run .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
