"""Records of how a script learns: its losses, and in a screen its first gradient and how far its weights move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Loss:
    """A training loss, and the samples trained on by then.

    ``site`` is where the script calls backward on it, "" where that isn't seen. ``objective`` is the site of the first
    loss that goes into the same optimizer steps, "" where that is this one: gradients add up, and so do such losses.
    """

    kind: ClassVar[str] = "loss"
    samples: float
    value: float
    site: str = ""
    objective: str = ""


@dataclass(frozen=True)
class FirstGradient:
    """The whole gradient of a screen's first step. ``exact`` means full float32, ``random`` that something was drawn.

    ``changed``: whether the script changed it by itself before the step, past what is known to clip or to unscale; the
    norm is that of before. ``inputs`` are elements and a weighted sum of each tensor that the step was taken on: the
    same for the same data.
    """

    kind: ClassVar[str] = "gradient"
    norm: float
    samples: float
    exact: bool
    random: bool
    inputs: tuple[tuple[float, float], ...] = ()
    changed: bool = False


@dataclass(frozen=True)
class WeightChange:
    """How far training moved a sample of some weights in a screen, in the order in which such groups were met.

    ``optimizer`` is who moves them: an optimizer's class; "GradientTape" where a tape of TensorFlow's takes gradients
    of them, whatever applies these; "backward" where the script of PyTorch's updates them by hand; else a model's
    class. ``path`` is the sum over its ``steps``, or the calls that took several, of the norms of what each of the
    watched tensors changed by. No steps: they couldn't be read. ``group`` tells it from groups of other shapes, in
    whichever order they are met; "" in earlier studies. ``changes``: of each watched tensor how much some of its
    elements changed from the first look to the last; none in earlier studies, where that isn't finite, and where
    they were set anew meanwhile.
    """

    kind: ClassVar[str] = "weights"
    optimizer: str
    steps: int
    path: float
    group: str = ""
    changes: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Metric:
    """A figure of the script's own: from ``tuner.report``, or the first and last that a logger or trainer was given."""

    kind: ClassVar[str] = "metric"
    name: str
    value: float
    samples: float = 0.0
