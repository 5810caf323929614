# `make explain` shows attention at work; `make test` runs every check. Each installs what it needs first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: explain test test-all setup lint types unit bench docs clean

explain: .venv/package
	$(BIN)/clearhead explain
	$(BIN)/clearhead explain "My dog loves quantum pizza!"
	@printf '\nClearhead is installed in .venv. To use it in this shell:\n\n    source $(BIN)/activate\n\n'
	@printf 'Then try:\n\n    clearhead explain "My dog loves quantum pizza!" --query dog\n'
	@printf '    clearhead check docs/examples/my_attention.py\n    clearhead info gpt2-small\n'

test: setup lint types unit

test-all: setup lint types
	$(BIN)/pytest -n 2

setup: .venv/tests

# The package alone: what `pip install .` gives.
.venv/package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

# What the tests need besides. timm and llms-from-scratch have attention that `check` must not flag; they
# come without their dependencies (torchvision, tensorflow), which their attention does not use.
.venv/tests: .venv/package
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps timm llms-from-scratch
	touch $@

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

unit:
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

bench: setup
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
