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
# Compiled afterwards by all cores: pip compiles gigabytes of packages on one. Without two fifths of them that nothing
# here imports (tests of packages, models of transformers, what mypy has as binaries): what is imported all the same is
# compiled then.
INSTALL = $(BIN)/python -m pip install -q --no-compile
UNUSED = /tests?/|/testing/|/transformers/models/|/pygments/lexers/|/(pip|setuptools|mypyc?|alembic|aiohttp|grpc)/|$\
	/(werkzeug|pydantic|quack|pallas|internal_test_util)/|/sympy/(physics|stats|combinatorics|vector)/
COMPILE = $(BIN)/python -m compileall -q -j 0 -x '$(UNUSED)' $(VENV)/lib > /dev/null || true
# The pip that comes with Python 3.11 takes 57 s of a core for what 26.3 does in 33: it hashes all that a platform is
# compatible with for each version of each package. Where there is no newer one it does as well.
NEWER_PIP = -$(INSTALL) 'pip>=26'
# TensorFlow and JAX are installed for the tests and for the studies that train with them only.
NEEDS = $(if $(shell grep -lE '^import (keras|tensorflow)' $(STUDY)/train.py),$(VENV)/.keras) \
	$(if $(shell grep -lE '^import jax' $(STUDY)/train.py),$(VENV)/.jax)

# Tests that time nothing run in this many processes at once: twice the two cores that they are made for, since half of
# a process's time it waits for its children, or for a time to pass. Each takes 2 GB at last.
WORKERS ?= 4
PYTEST = $(BIN)/python -m pytest

# The oldest Keras that pyproject.toml promises; make test-keras KERAS="keras==3.10.*"  takes another.
# Keras 3.8 asks JAX for what newer ones no longer have (jax.spmd_mode): on JAX its tests fail, as plain Keras does.
KERAS ?= keras==3.8.*

# PyTorch's XLA devices need the PyTorch that they were built for, and so an environment of their own.
XLA_VENV ?= .venv-xla
TORCH_XLA ?= torch==2.9.* torch_xla==2.9.*

# What is trained with on JAX beside JAX itself, which `make test` has alone; PyTorch, whose loaders feed it.
JAX_VENV ?= .venv-jax
ON_JAX ?= optax flax equinox grain keras ml_collections tyro hydra-core

# Hundreds of processes import the same modules: they are compiled once.
# Nor may a test lose its asserts.
unexport PYTHONDONTWRITEBYTECODE PYTHONOPTIMIZE

.PHONY: env env-xla env-jax study test test-all test-keras test-xla test-jax check-cuda benchmark-proof grids longer benchmark side-by-side golden lint types clean

env: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(NEWER_PIP)
	$(INSTALL) $(PIP_ARGS) $(TORCH)
	$(INSTALL) $(TORCH) -e '.[studies]'
	$(COMPILE)
	touch $@

$(VENV)/.keras: $(VENV)/.installed
	$(INSTALL) $(TENSORFLOW)
	$(COMPILE)
	touch $@

$(VENV)/.jax: $(VENV)/.installed
	$(INSTALL) $(TORCH) -e '.[studies,jax]'
	$(COMPILE)
	touch $@

# All that the tests need: whatever is missing fails them. At once, where nothing is installed yet: as `make env` first, and
# the rest behind it, takes a second look at all packages, and compiles twice.
$(VENV)/.tests: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(NEWER_PIP)
	$(if $(PIP_ARGS),$(INSTALL) $(PIP_ARGS) $(TORCH))
	$(INSTALL) $(TORCH) $(TENSORFLOW) -e '.[studies,test]'
	$(COMPILE)
	touch $(VENV)/.installed $@ $(VENV)/.keras $(VENV)/.jax

env-xla: $(XLA_VENV)/.installed

# What tests/conftest.py imports, and no more: the other tests run on the PyTorch of $(VENV).
$(XLA_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(XLA_VENV)
	$(XLA_VENV)/bin/python -m pip install -q $(PIP_ARGS) $(TORCH_XLA)
	$(XLA_VENV)/bin/python -m pip install -q $(TORCH_XLA) -e '.[studies]' 'pytest>=8.4' 'pytest-rerunfailures>=16.7' \
		'pytest-timeout>=2.3' 'hypothesis>=6.100'
	touch $@

env-jax: $(JAX_VENV)/.installed

$(JAX_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(JAX_VENV)
	$(JAX_VENV)/bin/python -m pip install -q $(PIP_ARGS) $(TORCH)
	$(JAX_VENV)/bin/python -m pip install -q $(TORCH) -e '.[studies,jax]' $(ON_JAX) 'pytest>=8.4' 'pytest-rerunfailures>=16.7' \
		'pytest-timeout>=2.3' 'hypothesis>=6.100'
	touch $@

study: env $(NEEDS)
	$(BIN)/autotune study $(STUDY) --study $(STUDY_FOLDER) $(STUDY_ARGS)
	@echo
	@echo "$(STUDY_FOLDER)/best.json:"
	@cat $(STUDY_FOLDER)/best.json

# In a new clone every process of tests would compile all files, each of them in 7 s of a core: they are compiled before.
# What measures time or has a deadline ("timed") runs alone, behind all that doesn't. That shares the cores, with mypy, too:
# a thread that waits mustn't keep one busy meanwhile, and nothing computes in several. What fails in either phase is run
# once more, alone, as CPython's own test runner does: it has failed if it fails then, and the values that an assertion
# compared are said then, too: to make four processes say them takes each 15 s of a core, for all files. However often a
# process of tests crashes, another one goes on with what it has left.
UNTIMED = -m "not slow and not timed"
IN_PARALLEL = --max-worker-restart 10000 -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(UNTIMED)
BESIDE_OTHERS = OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1
ALONE = --last-failed --last-failed-no-failures none
# The files of those: to import all others takes as long as several of them.
TIMED = -m "timed and not slow" $(sort $(shell grep -rl --include='test_*.py' 'mark\.timed' tests))
test: lint
	@$(BIN)/python -m compileall -q -j 0 tuner search_spaces objectives tests
	@$(BIN)/mypy > $(VENV)/types.txt 2>&1 & types=$$!; \
	$(BESIDE_OTHERS) $(PYTEST) --assert=plain $(IN_PARALLEL) || { test $$? = 1 && $(PYTEST) $(ALONE) $(UNTIMED); }; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; test $$tests = 0 && test $$types = 0
	$(PYTEST) $(TIMED) || { test $$? = 1 && $(PYTEST) $(ALONE) $(TIMED); }

# The long campaigns and every variant, too, each script in a process that starts afresh, and examples of properties that
# nobody tried before.
test-all: lint types
	$(BESIDE_OTHERS) $(PYTEST) --fresh --hypothesis-profile=new $(IN_PARALLEL)
	$(PYTEST) --fresh -m "timed or slow"

# On a machine with a card and PyTorch, in ten minutes and without a network; what it lacks: WHEELS=a folder of wheels.
check-cuda:
	$(PYTHON) tests/benchmarks/check_cuda.py --out check-cuda.json $(if $(WHEELS),--wheels $(WHEELS))

# Another Keras than the newest one, laid before it: beside the same TensorFlow, JAX and PyTorch, and for these tests only.
# In a folder that is called as those of installed packages are: from any other nothing is imported ahead of a fork.
test-keras: $(VENV)/.tests
	rm -rf $(VENV)/keras
	$(INSTALL) --no-deps --target $(VENV)/keras/site-packages '$(KERAS)'
	PYTHONPATH=$(abspath $(VENV)/keras/site-packages) $(PYTEST) tests/end_to_end/test_keras_*.py \
		tests/faults/test_keras_faults.py tests/differential/test_keras_*.py

# Their files alone: others import frameworks that this environment doesn't have.
XLA_TESTS = $(sort $(shell grep -rl --include='test_*.py' 'mark\.xla' tests))
# torch_xla scripts on PJRT's CPU client: the tests that `make test` skips for want of torch_xla.
test-xla: env-xla
	$(XLA_VENV)/bin/python -m pytest -m xla $(XLA_TESTS)

# All that trains with JAX: the loops of optax, Flax and Grain, and options of ml_collections, tyro and Hydra, that
# `make test` skips for want of them; and the variants of JAX's own, which it leaves out.
test-jax: env-jax
	$(JAX_VENV)/bin/python -m pytest tests/end_to_end/test_jax_*.py tests/unit/child/test_jax_*.py \
		tests/end_to_end/test_config_flags.py tests/end_to_end/test_other_parsers.py \
		tests/end_to_end/test_forked_jax_trials.py tests/unit/child/test_feeds_of_jax.py tests/contract/test_jax_waits.py

# How often planted gains are proven on a made-up machine, by turns and one after the other.
benchmark-proof: $(VENV)/.tests
	$(BIN)/python tests/benchmarks/proof.py
	$(BIN)/python tests/benchmarks/proof.py --in-sequence

# Every config of ten scripts, each into a file of tests/benchmarks/grids: hours, in which nothing else may run. One of them:
# make grids GRIDS=digits. Ended at any moment, the same command goes on.
GRIDS ?= digits photos storage overhead mixed keras_loop language keras_digits keras_photos compiled
RECORD_ARGS ?=
RECORD = $(BIN)/autotune record --device cpu --effective-batch free --window 500ms
GRID_FOLDER = tests/benchmarks/grids
# Each spans 300 configs at least; the memory limits make the largest batches, or the most workers, infeasible. Those without
# `threads`, which is set before Python starts, are forked, each in half the time.
grid_digits = studies/digits/train.py --knobs num_workers,prefetch_factor,persistent_workers,channels_last,optimizer,batch_size \
	--values num_workers=0,1,2 --values prefetch_factor=2,8 --values batch_size=16,32,128,256,512 --max-memory 560MiB
grid_photos = studies/photos/train.py --knobs num_workers,prefetch_factor,persistent_workers,channels_last,batch_size \
	--values num_workers=0,1,2,3,4,6 --values prefetch_factor=2,4,8 --values batch_size=8,16,64,128 --max-memory 700MiB
grid_storage = $(GRID_FOLDER)/storage_bound.py \
	--knobs num_workers,prefetch_factor,persistent_workers,channels_last,batch_size \
	--values num_workers=0,2,4,8,16,32 --values prefetch_factor=2,4,8 --values batch_size=16,64,128,256 --max-memory 620MiB
grid_overhead = $(GRID_FOLDER)/overhead_bound.py \
	--knobs num_workers,prefetch_factor,persistent_workers,precision,optimizer,batch_size --values num_workers=0,1,2 \
	--values prefetch_factor=2,4,8 --values batch_size=32,128,512,2048 --max-memory 600MiB
grid_mixed = $(GRID_FOLDER)/mixed_loop.py \
	--knobs num_workers,prefetch_factor,persistent_workers,precision,channels_last,batch_size \
	--values num_workers=0,1,2,4 --values prefetch_factor=2,4,8 --values batch_size=32,128,512,2048 --max-memory 720MiB
grid_keras_loop = $(GRID_FOLDER)/keras_loop.py --knobs parallel_calls,prefetch,precision,batch_size,steps_per_execution \
	--values parallel_calls=1,2,auto --values prefetch=1,4 --values batch_size=32,64,128,256,512,1024,2048 \
	--values steps_per_execution=1,4,16 --max-memory 1110MiB --window 250ms --no-probe
grid_language = $(GRID_FOLDER)/language_loop.py \
	--knobs num_workers,prefetch_factor,precision,optimizer,attention,batch_size --values num_workers=0,1,2 \
	--values prefetch_factor=2,8 --values batch_size=16,32,64,128,256 --max-memory 760MiB --window 250ms --no-probe
grid_compiled = $(GRID_FOLDER)/mixed_loop.py \
	--knobs num_workers,prefetch_factor,precision,compile,threads,optimizer,batch_size --values num_workers=0,1,2,4 \
	--values prefetch_factor=2,4,8 --values optimizer=foreach --values batch_size=32,2048 --max-memory 1200MiB
grid_keras_digits = studies/keras_digits/train.py \
	--knobs inter_op_threads,precision,grappler_mixed_precision,batch_size,steps_per_execution,jit_compile \
	--values batch_size=32,64,96,128,192,256,512,1024 --values steps_per_execution=1,2,4,8 --max-memory 1250MiB
grid_keras_photos = studies/keras_photos/train.py \
	--knobs parallel_calls,cache,prefetch,private_threads,threads,batch_size \
	--values prefetch=auto,1 --values private_threads=0,2 --values batch_size=32,64,128,256,512 --max-memory 1300MiB
grids: $(VENV)/.tests $(GRIDS:%=grid-%)

grid-%: $(VENV)/.tests
	$(RECORD) $(grid_$*) --out $(GRID_FOLDER)/$*.jsonl.gz --study autotune-grid-$* $(RECORD_ARGS)

# The fastest of a grid's configs once more, for longer: of many short readings the highest are those that had luck.
LONGER = 60
longer: $(VENV)/.tests $(GRIDS:%=longer-%)

longer-%: $(VENV)/.tests
	$(RECORD) $(grid_$*) --among $(GRID_FOLDER)/$*.jsonl.gz --configs $(LONGER) --window 4s --out $(GRID_FOLDER)/$*.longer.jsonl.gz \
		--study autotune-grid-$*-longer $(RECORD_ARGS)

# Samplers on all of them: tests/benchmarks/grids/results.md and results.svg.
SEEDS ?= 30
benchmark: $(VENV)/.tests
	$(INSTALL) $(TORCH) -e '.[benchmark]'
	$(BIN)/python tests/benchmarks/samplers_on_grids.py --races --seeds $(SEEDS) --out $(GRID_FOLDER)

# autotune and what a user would do instead, on the same scripts in the same minutes, with nothing else at work: each script
# takes three times the minutes and that of the pairs. Ended at any moment, the same command goes on.
SIDE_BY_SIDE ?= studies/digits studies/photos studies/keras_digits studies/keras_photos studies/waterfall
SIDE_BY_SIDE_ARGS ?=
side-by-side: $(VENV)/.tests
	$(INSTALL) $(TORCH) -e '.[side-by-side]'
	$(BIN)/python tests/benchmarks/side_by_side.py $(SIDE_BY_SIDE) $(SIDE_BY_SIDE_ARGS)

# AUTOTUNE_GOLDEN=write make golden  writes the golden files anew
golden: $(VENV)/.tests
	$(PYTEST) -q tests/golden

lint: $(VENV)/.tests
	$(BIN)/ruff check .

types: $(VENV)/.tests
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(XLA_VENV) $(JAX_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
