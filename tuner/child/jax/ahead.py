"""Batches that are put on the device before the loop asks for them: the framework's part in ``device_prefetch``.

What makes them ahead has a thread of its own for that. The script is given arrays of JAX's in place of NumPy's, which
goes where each one is given to a compiled function and to nothing else (``straight``).
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

from .functions import JittedFunction
from .straight import Straight
from .types import Arguments, Keywords

NOT_COMPILED = "the script has JAX compile nothing (jax_disable_jit)"
ENOUGH = 64
"""Training calls that are looked at, whether they are given what was put."""
ALIKE = frozenset({
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "bfloat16", "complex64",
})  # fmt: skip
"""Types of elements that JAX has under each of its settings: others the call itself converts, as it is set then."""


class PutWatch:
    """``reached``: training calls that were given an array that was put ahead, of the ``looked_at`` first ones."""

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._straight = Straight()
        self._put: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.reached = self.looked_at = 0
        self._is_used = False

    def why_not(self, frame: FrameType) -> str:
        """Why the batches of an iteration that this frame begins can't be put ahead; "" where they can."""
        return NOT_COMPILED if self._jax.config.jax_disable_jit else self._straight.why_not(frame)

    def put(self, element: Any) -> Any:
        """The same with arrays on the device, where the script makes its own. In any thread."""
        self._is_used = True
        leaves, structure = self._jax.tree_util.tree_flatten(element)
        return self._jax.tree_util.tree_unflatten(structure, list(map(self._place, leaves)))

    def _place(self, leaf: Any) -> Any:
        """An array as it is now: what made it may use its memory again for the next one."""
        if type(leaf) is not sys.modules["numpy"].ndarray:
            return leaf
        leaf = leaf.copy()
        if leaf.dtype.name not in ALIKE:
            return leaf
        made = self._jax.device_put(leaf)
        self._put[id(made)] = made
        return made

    def calls(self, function: JittedFunction, args: Arguments, kwargs: Keywords) -> None:
        """An outermost call of a compiled function is about to begin."""
        if not self._is_used or self.looked_at >= ENOUGH or not function.trains:
            return
        self.looked_at += 1
        leaves = self._jax.tree_util.tree_leaves((args, kwargs))
        self.reached += any(self._put.get(id(leaf)) is leaf for leaf in leaves)
