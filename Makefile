# Everything a fresh machine needs: python3 and make.
PYTHON ?= python3
VENV ?= .venv
# Plain "torch" takes the newest CUDA build of several gigabytes; this one is enough for the tests and studies.
TORCH ?= torch==2.13.0
PIP_ARGS ?=
BIN = $(VENV)/bin

.PHONY: env study test lint types clean

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(PIP_ARGS) $(TORCH)
	$(BIN)/python -m pip install -q $(PIP_ARGS) -e '.[studies,test]'
	touch $@

lint: env
	$(BIN)/ruff check .

types: env
	$(BIN)/mypy

test: env lint types
	$(BIN)/python -m pytest -m "not slow"
