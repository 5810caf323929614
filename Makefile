# `make explain` shows attention at work; `make test` runs every check. Both set everything up first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: explain test test-all setup lint types unit bench clean

explain: setup
	$(BIN)/clearhead explain
	$(BIN)/clearhead explain "the cat sat on the mat"

test: setup lint types unit

test-all: setup lint types
	$(BIN)/pytest -n 2

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

unit:
	$(BIN)/pytest -n 2 -m "not slow"

bench: setup
	$(BIN)/clearhead bench attention --out bench/results/attention-cpu.json

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
