# Everything a fresh machine needs: python3 (3.11 or newer, with its venv module) and make.
PYTHON ?= python3
VENV ?= .venv
# What the tests and studies run on. PyPI's Linux wheel brings several gigabytes of CUDA libraries; a machine
# without a GPU is served better by: make PIP_ARGS="--index-url <the CPU wheel index of pytorch.org>"
TORCH ?= torch==2.13.0
TENSORFLOW ?= tensorflow-cpu==2.21.0
PIP_ARGS ?=
# The study of `make study`, and options for it.
STUDY ?= studies/digits
STUDY_ARGS ?=
STUDY_FOLDER ?= autotune-$(notdir $(STUDY))
BIN = $(VENV)/bin
# TensorFlow is large, and installed for the tests and for the studies that train with it only.
NEEDS = $(if $(shell grep -lE '^import (keras|tensorflow)' $(STUDY)/train.py),$(VENV)/.keras)

.PHONY: env study test golden lint types clean

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(PIP_ARGS) $(TORCH)
	$(BIN)/python -m pip install -q -e '.[studies,test]'
	touch $@

$(VENV)/.keras: $(VENV)/.installed
	$(BIN)/python -m pip install -q $(PIP_ARGS) $(TENSORFLOW)
	touch $@

study: env $(NEEDS)
	$(BIN)/autotune study $(STUDY) --study $(STUDY_FOLDER) $(STUDY_ARGS)
	@echo
	@echo "$(STUDY_FOLDER)/best.json:"
	@cat $(STUDY_FOLDER)/best.json

test: env $(VENV)/.keras lint types
	$(BIN)/python -m pytest -m "not slow"

# AUTOTUNE_GOLDEN=write make golden  writes the golden files anew
golden: env
	$(BIN)/python -m pytest -q tests/golden

lint: env
	$(BIN)/ruff check .

types: env
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
