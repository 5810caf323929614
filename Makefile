# `make explain` shows attention at work; `make test` runs every check. Both set everything up first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: explain test test-all setup lint types unit bench docs clean

explain: setup
	$(BIN)/clearhead explain
	$(BIN)/clearhead explain "the cat sat on the mat"

test: setup lint types unit

test-all: setup lint types
	$(BIN)/pytest -n 2

setup: .venv/ready

# timm and llms-from-scratch: attention that `check` must not flag. Without what they depend on
# (torchvision, tensorflow), which their attention does not need.
.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/pip install --quiet --no-deps timm llms-from-scratch
	touch $@

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

unit:
	$(BIN)/pytest -n 2 -m "not slow"

bench: setup
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
