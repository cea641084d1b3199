"""Whether transformers' Trainer only adds up the gradients of a step's parts, by the code that computes their loss.

It leaves it to a loss that is told how many items a step has to divide by them, and then divides by no number of parts.
One that takes the mean of its own part instead has twice the gradient with twice the parts.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from ..call_sites import codes
from ..session import Session
from ..taken import instructions_of

ADDED_UP = "the trainer adds up the gradients of a step's parts, and {name} takes the mean of each by itself"
ITEMS = "num_items_in_batch"
_LIBRARYS = "loss_function"
_LOSSES = ("Loss", "_loss", "cross_entropy", "with_logits", _LIBRARYS, "loss_fn", "criterion")
"""How functions and classes that compute losses end, PyTorch's and the library's."""
_OF_CLASSES = "ForSequenceClassificationLoss"
_MEANS = ("regression", "multi_label_classification")
"""Problems of which the library's loss of classes takes a mean whatever it is told."""


class PartsLook:
    """Keeps the number of a step's parts where the gradient would grow with it. ``base`` is the library's Trainer."""

    def __init__(self, session: Session, base: Any) -> None:
        self._session = session
        self._base = base
        self._is_due = not session.request.config

    def after(self, trainer: object, told: object) -> None:
        """Behind each step, whose first loss says of which kind the problem is; ``told``: the items of the step."""
        if told is None or not self._is_due:
            return
        self._is_due = False
        with contextlib.suppress(Exception):  # another version's
            if name := _takes_means(trainer, self._base):
                self._session.knobs.keep_script_value("grad_accumulation", ADDED_UP.format(name=name))


def _takes_means(trainer: Any, base: type) -> str:
    """The name of what computes the loss of a part, where it is seen to divide by no number of a step's items."""
    if getattr(trainer, "loss_is_scaled_for_ga", None) is not None:
        return ""  # the script says which: with False the trainer divides
    by_function = trainer.compute_loss_func
    if not (trainer.model_accepts_loss_kwargs or by_function):
        return ""
    kinds = type(trainer).__mro__
    for kind in kinds[: kinds.index(base)]:
        if "compute_loss" not in vars(kind):
            continue
        own = inspect.unwrap(vars(kind)["compute_loss"])
        if not _is_told(own):
            return f"{kind.__name__}.compute_loss"  # nor does it tell the library's
        if not _loads(own) & {"super", "compute_loss"}:
            return ""
    if by_function:
        function = getattr(by_function, "func", by_function)
        name, code = getattr(function, "__name__", type(function).__name__), _code_of(function)
        return "" if _is_told(code) else str(name)
    if smoother := trainer.label_smoother:
        return "" if _is_told(type(smoother).__call__) else type(smoother).__name__
    return _model_of_means(trainer.model)


def _model_of_means(model: Any) -> str:
    """The model's class, where its own loss is such a mean; "" also where that can't be told."""
    model = getattr(model, "_orig_mod", model)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's wraps the one that computes
    forward = inspect.unwrap(type(model).forward)
    if not _is_told(forward):
        return type(model).__name__
    if ITEMS in _loads(forward) or not (losses := list(_losses_in(forward))):
        return ""
    told = [name for name, call in losses if any(keyword.arg in (None, ITEMS) for keyword in call.keywords)]
    takes_mean = _by_librarys(model) if _LIBRARYS in told else not told
    return type(model).__name__ if takes_mean else ""


def _code_of(function: Any) -> Any:
    """What it runs: a function itself, or an object's method."""
    if hasattr(function, "__code__"):
        return inspect.unwrap(function)
    return getattr(type(function), "forward", type(function).__call__)  # that of a module passes on what it is given


def _by_librarys(model: Any) -> bool:
    """Whether the library's loss of this model, or the script's in its place, takes a mean whatever it is told."""
    function = getattr(model, _LIBRARYS)
    by_class = getattr(function, "__name__", "") == _OF_CLASSES
    return not _is_told(function) or (by_class and model.config.problem_type in _MEANS)


def _is_told(function: Any) -> bool:
    """Whether the code reads the number of items, or what else it was given by name, among which that is."""
    code = function.__code__
    named = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    rest = code.co_varnames[named : named + 1] if code.co_flags & inspect.CO_VARKEYWORDS else ()
    return not _loads(function).isdisjoint((ITEMS, *rest))


def _losses_in(function: Any) -> Iterator[tuple[str, ast.Call]]:
    """Calls in its source of what computes losses, by its name. Raises ``OSError`` where that isn't there."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if isinstance(node, ast.Call) and name.endswith(_LOSSES):
            yield name, node


def _loads(function: Any) -> set[str]:
    """Names and words that its code reads: none by which it only gives an argument, several of which are a constant."""
    read = (each for code in codes(function.__code__) for each in instructions_of(code))
    return {each.argval for each in read if each.opname.startswith("LOAD_") and type(each.argval) is str}
