# Verbs for newcomers. `make` alone prints them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PY := .venv/bin/python

.PHONY: help setup demo rl-loop test test-unit test-engine test-integrations test-cluster test-full lint format crds docs lock bench bench-loans bench-gateway bench-flips bench-scale chaos-loans chaos-gateway chaos-fleet soak clean

help: ## print the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

setup: .venv/.done ## make the virtual environment .venv (installs what the machine lacks)

.venv/.done: requirements/dev.txt pyproject.toml scripts/setup trainer_adapter/pyproject.toml
	@scripts/setup

demo: setup ## emulated H100 workers on a spot trace, then real cluster, vLLM and trainer, with a report (ARGS='--acts 1')
	@$(PY) -m examples.demo $(ARGS)

rl-loop: setup ## a real RL loop that lends its GPU between updates, on this machine: reward, GPU use and shape in a plot
	@$(PY) -m examples.rl_loop

test: setup ## all tests: lint, unit, real vLLM on CPU, real Kubernetes
	@scripts/test lint unit integrations engine cluster

test-unit: setup ## the fast tests alone
	@scripts/test unit

test-engine: setup ## real vLLM on CPU
	@scripts/test engine

test-integrations: setup ## the trainer adapters with TRL and verl themselves
	@scripts/test integrations

test-cluster: setup ## real Kubernetes with real vLLM in pods
	@scripts/test cluster

test-full: setup ## everything, the slowest suites too
	@PEARL_SLOW=1 scripts/test lint unit integrations engine cluster

lint: setup ## ruff, mypy, import rules, generated files
	@scripts/test lint

format: setup ## format the code
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

crds: setup ## write the generated CRDs (crds/ and the chart's copy)
	@.venv/bin/pearl-api crds --write

docs: setup ## write the generated reference pages
	@.venv/bin/pearl-api docs --write && $(PY) -m pearl_dev.monitoring --write && $(PY) -m pearl_dev.rbac --write

bench: setup ## measure the engine on this machine (rewrites the CPU table)
	@$(PY) -m pearl_worker.measure

bench-loans: setup ## 100 GPU sets that are lent and taken back all the time (JSON=FILE, ARGS: --help)
	@$(PY) tests/bench/loans.py $(if $(JSON),--json $(JSON)) $(ARGS)

bench-flips: setup ## role flips under load on the real local cluster, from decision to first token (JSON=FILE, ARGS: --help)
	@$(PY) tests/bench/flips.py $(if $(JSON),--json $(JSON)) $(ARGS)

bench-gateway: setup ## the gateway beside vllm-router on the same workers, and what a turn costs (JSON=FILE, ARGS: --help)
	@$(PY) tests/bench/gateway.py $(if $(JSON),--json $(JSON)) $(ARGS)

bench-scale: setup ## the operator with 1,000 kwok nodes and 2,000 pods of which 20 per second go (JSON=FILE, ARGS: --help)
	@$(PY) tests/bench/scale.py $(if $(JSON),--json $(JSON)) $(ARGS)

lock: .venv/.done ## compile the hash-pinned requirement files
	@scripts/lock

chaos-loans: setup ## break loans on the real local cluster, one thing and two at a time (ARGS: docs/loans-chaos.md)
	@PYTHONPATH=.:tests/e2e:tests/support $(PY) -m loans_chaos $(ARGS)

chaos-gateway: setup ## break everything behind the gateway, and the gateway, under load; check every token (JSON=FILE, ARGS: --help)
	@PYTHONPATH=.:tests/e2e:tests/support $(PY) -m gateway_chaos $(if $(JSON),--json $(JSON)) $(ARGS)

chaos-fleet: setup ## break nodes, control plane, network and metrics under a fleet on the real local cluster (ARGS="-k WORD")
	@.venv/bin/pytest -v -m slow tests/e2e/test_fleet_chaos.py --timeout 1800 $(ARGS)

soak: setup ## weeks of the operator on virtual time: nodes that come and go, loans, faults (JSON=FILE, ARGS='--weeks 4 --seed 1')
	@PYTHONPATH=tests/simulation:tests/support $(PY) -m soak $(if $(JSON),--json $(JSON)) $(ARGS)

clean: ## remove the virtual environment and build outputs (caches stay)
	rm -rf .venv build dist report .mypy_cache .ruff_cache .pytest_cache
