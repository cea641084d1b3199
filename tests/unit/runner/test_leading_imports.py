"""Which of a script's imports may be done before it runs."""

from __future__ import annotations

import textwrap

import pytest

from tuner.runner.leading_imports import leading_imports


def names(source: str) -> list[str]:
    return [f"{name}:{','.join(taken)}" if taken else name for _, name, taken in leading_imports(source)]


def test_all_at_the_top_in_their_order_with_their_lines() -> None:
    source = textwrap.dedent('''
        """What it does."""
        from __future__ import annotations
        # a comment
        import argparse, time
        import numpy as np
        from torch import (nn,
                           optim)
        from sklearn.datasets import load_digits as digits
        print("here")
        import scipy
    ''')
    assert leading_imports(source) == (
        (5, "argparse", ()), (5, "time", ()), (6, "numpy", ()), (7, "torch", ("nn", "optim")),
        (9, "sklearn.datasets", ("load_digits",)),
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['OMP_NUM_THREADS'] = '1'", "if True:\n    pass", "try:\n    import yaml\nexcept ImportError: pass",
        "import wandb", "import my_model", "from . import other", "from .other import x",
        "from numpy import *", "import this", "x = 1", "import tuner", "import optax", "class A: pass",
        "'no docstring'",
    ],
)  # fmt: skip
def test_nothing_behind_what_may_matter(line: str) -> None:
    assert names(f"import os\n{line}\nimport torch\n") == ["os"]


def test_of_a_script_of_jaxs_all_before_the_libraries_above_it() -> None:
    """Optax has JAX compile a function as it is imported, by what a fresh process has replaced then."""
    source = "from absl import app\nimport jax\nimport jax.numpy as jnp\nimport optax\nimport numpy\n"
    assert names(source) == ["absl:app", "jax", "jax.numpy"]


def test_of_a_line_what_stands_before() -> None:
    assert names("import os, my_model, torch\nimport numpy") == ["os"]


@pytest.mark.parametrize("source", ["", "import os\nthis is no Python", "import os\0"])
def test_of_what_is_no_python_nothing(source: str) -> None:
    assert names(source) == []


@pytest.mark.parametrize(
    "line", ["from jax.experimental import mesh_utils, sparse", "from jax.experimental.sparse import BCOO"]
)
def test_not_what_makes_other_functions_of_replaced_ones(line: str) -> None:
    """Sparse arrays of JAX's are multiplied by what is made of ``jnp.matmul`` as they are imported."""
    assert names(f"import jax\n{line}\nimport numpy\n") == ["jax"]
