"""A model's own settings where the script asks it outside of its training: those of a config are for its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .types import Model

MODEL_KNOBS = ("run_eagerly", "jit_compile", "steps_per_execution")
"""The knobs that are attributes of a model, and of no call of it."""
_FUNCTIONS = ("test_function", "predict_function")
_KEPT = "_autotune_settings"


@dataclass
class _Kept:
    """Lies on the model, with which it goes. ``compiled``: what the model was compiled with when it was changed.

    ``changed``: knob → what it was set to, and the script's own value. ``functions``: what evaluates and predicts with
    the latter; None where none was made yet.
    """

    compiled: object
    changed: Mapping[str, tuple[object, object]]
    functions: Mapping[str, object] = field(default_factory=lambda: dict.fromkeys(_FUNCTIONS))


def own(model: Model, knob: str) -> Any:
    """The script's own value, also of a model that an earlier call of ``fit`` has changed."""
    now: Any = getattr(model, knob)
    kept = _kept(model)
    ours, written = kept.changed.get(knob, (now, now)) if kept is not None else (now, now)
    return written if now == ours else now


def put(model: Model, wanted: Mapping[str, object]) -> bool:
    """Sets these for its training. Returns whether one of them differs from what the model has."""
    written, kept = {knob: own(model, knob) for knob in wanted}, _kept(model)
    differing = [knob for knob, value in wanted.items() if getattr(model, knob) != value]
    for knob in differing:
        setattr(model, knob, wanted[knob])
    if wanted and (differing or kept is None):
        # Past the model's own ``__setattr__``, by which Keras keeps track of its parts.
        changed = {knob: (getattr(model, knob), value) for knob, value in written.items()}
        vars(model)[_KEPT] = _Kept(_compiled(model), changed)
    return bool(differing)


@contextmanager
def as_written(model: Model) -> Iterator[None]:
    """The model as the script has it, for what that evaluates or predicts by itself.

    Calls of several steps would take more of them than the script asks for (``steps=``), and predict for batches of
    different shapes together; and XLA may not compile what no training runs.
    """
    kept = _kept(model)
    changed = {} if kept is None else kept.changed
    settings = {knob: value for knob, (ours, value) in changed.items() if getattr(model, knob) == ours != value}
    if kept is None or not settings:
        yield
        return
    before = _exchanged(model, settings, kept.functions)
    try:
        yield
    finally:
        _, functions = _exchanged(model, *before)
        kept.functions = functions


def _exchanged(
    model: Model, settings: Mapping[str, object], functions: Mapping[str, object]
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """Gives the model these; what it had in their place."""
    before = ({knob: getattr(model, knob) for knob in settings}, {name: getattr(model, name) for name in functions})
    for name, value in (*settings.items(), *functions.items()):
        setattr(model, name, value)
    return before


def _kept(model: Model) -> _Kept | None:
    """What is kept of the model; None where nothing is, or the script has compiled it since: all of it is its own."""
    kept: _Kept | None = vars(model).get(_KEPT)
    return kept if kept is not None and kept.compiled is _compiled(model) else None


def _compiled(model: Model) -> object:
    """Another object with each ``compile``."""
    return getattr(model, "_compile_config", None)
