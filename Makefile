# Everything a fresh machine needs: python3 (3.11 or newer, with its venv module) and make.
PYTHON ?= python3
VENV ?= .venv
# What the tests and studies run on; PyTorch is installed first, and every later command names it again, so that none
# replaces it. PyPI's Linux wheel brings several gigabytes of CUDA libraries; a machine
# without a GPU is served better by: make PIP_ARGS="--index-url <the CPU wheel index of pytorch.org>"
TORCH ?= torch==2.13.0
TENSORFLOW ?= tensorflow-cpu==2.21.0
PIP_ARGS ?=
# The study of `make study`, and options for it.
STUDY ?= studies/digits
STUDY_ARGS ?=
STUDY_FOLDER ?= autotune-$(notdir $(STUDY))
BIN = $(VENV)/bin
# Compiled afterwards by all cores: pip compiles gigabytes of packages on one.
INSTALL = $(BIN)/python -m pip install -q --no-compile
COMPILE = $(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null || true
# TensorFlow is large, and installed for the tests and for the studies that train with it only.
NEEDS = $(if $(shell grep -lE '^import (keras|tensorflow)' $(STUDY)/train.py),$(VENV)/.keras)

# Tests that time nothing run in this many processes at once: one more than cores, since most wait for their children.
WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest

# The oldest Keras that pyproject.toml promises; make test-keras KERAS="keras==3.10.*"  takes another.
# Keras 3.8 asks JAX for what newer ones no longer have (jax.spmd_mode): on JAX its tests fail, as plain Keras does.
KERAS ?= keras==3.8.*

# Hundreds of processes import the same modules: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: env study test test-all test-keras check-cuda benchmark-proof golden lint types clean

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(PIP_ARGS) $(TORCH)
	$(INSTALL) $(TORCH) -e '.[studies]'
	$(COMPILE)
	touch $@

$(VENV)/.keras: $(VENV)/.installed
	$(INSTALL) $(TENSORFLOW)
	$(COMPILE)
	touch $@

# All that the tests need: whatever is missing fails them.
$(VENV)/.tests: $(VENV)/.installed
	$(INSTALL) $(TORCH) $(TENSORFLOW) -e '.[studies,test]'
	$(COMPILE)
	touch $@ $(VENV)/.keras

study: env $(NEEDS)
	$(BIN)/autotune study $(STUDY) --study $(STUDY_FOLDER) $(STUDY_ARGS)
	@echo
	@echo "$(STUDY_FOLDER)/best.json:"
	@cat $(STUDY_FOLDER)/best.json

# What measures time or has a deadline ("timed") runs alone, behind all that doesn't. That shares the cores: a thread that
# waits mustn't keep one busy meanwhile. What fails beside others is run once more, alone, as CPython's own test runner does:
# it has failed if it fails then. However often a process of tests crashes, another one goes on with what it has left.
IN_PARALLEL = --max-worker-restart 10000 -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not timed"
ALONE = --last-failed --last-failed-no-failures none -m "not slow and not timed"
# The files of those: to import all others takes as long as several of them.
TIMED = -m "timed and not slow" $(sort $(shell grep -rl --include='test_*.py' 'mark\.timed' tests))
test: lint types
	OMP_WAIT_POLICY=PASSIVE $(PYTEST) $(IN_PARALLEL) || { test $$? = 1 && $(PYTEST) $(ALONE); }
	$(PYTEST) $(TIMED)

# The long campaigns and every variant, too, each script in a process that starts afresh, and examples of properties that
# nobody tried before.
test-all: lint types
	OMP_WAIT_POLICY=PASSIVE $(PYTEST) --fresh --hypothesis-profile=new $(IN_PARALLEL)
	$(PYTEST) --fresh -m "timed or slow"

# On a machine with a card and PyTorch, in ten minutes and without a network; what it lacks: WHEELS=a folder of wheels.
check-cuda:
	$(PYTHON) tests/benchmarks/check_cuda.py --out check-cuda.json $(if $(WHEELS),--wheels $(WHEELS))

# Another Keras than the newest one, laid before it: beside the same TensorFlow, JAX and PyTorch, and for these tests only.
test-keras: $(VENV)/.tests
	rm -rf $(VENV)/keras
	$(INSTALL) --no-deps --target $(VENV)/keras '$(KERAS)'
	PYTHONPATH=$(abspath $(VENV)/keras) $(PYTEST) tests/end_to_end/test_keras_*.py tests/faults/test_keras_faults.py \
		tests/differential/test_keras_*.py

# How often planted gains are proven on a made-up machine, by turns and one after the other.
benchmark-proof: $(VENV)/.tests
	$(BIN)/python tests/benchmarks/proof.py
	$(BIN)/python tests/benchmarks/proof.py --in-sequence

# AUTOTUNE_GOLDEN=write make golden  writes the golden files anew
golden: $(VENV)/.tests
	$(PYTEST) -q tests/golden

lint: $(VENV)/.tests
	$(BIN)/ruff check .

types: $(VENV)/.tests
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
