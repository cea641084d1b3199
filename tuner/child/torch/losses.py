"""The training losses that a script calls backward on, in its own units, however it splits or scales them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..call_sites import frames, line_stack
from ..session import Session
from ..watch import Watch
from .types import Node, Tensor

_PLAIN = "_autotune_plain"
_DEPTH = 12
_MOST_SERIES = 16


@dataclass(frozen=True)
class ReadLoss:
    """A loss that was read: where the script calls backward on it, and the first loss of the same optimizer steps."""

    site: str
    objective: str
    value: float


@dataclass
class _Series:
    """One loss of the script's, of which a screen reads every value.

    ``seen`` are the values since it was last read, each with what it was divided by, and ``steps`` the optimizer steps
    that they went into; ``is_open`` while the step that the newest goes into hasn't ended. ``parts``: of a whole step.
    """

    site: str
    reduction: str
    objective: str = ""
    seen: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    steps: int = 0
    parts: int = 1
    is_open: bool = False

    def add(self, loss: Tensor) -> None:
        self.seen.append((loss.detach(), _divisor(loss)))
        self.is_open = True

    def take(self, *, adds_up: bool) -> float:
        """The loss of the steps since the last time, in the mean; waits for the device."""
        several, self.seen = self.seen, []
        steps, self.steps = max(1, self.steps), 0
        # The last step of an epoch may have fewer parts than the others.
        self.parts = max(self.parts, round(len(several) / steps))
        total = sum(float(value) * self._share_of(divisor) for value, divisor in several)
        return total / (steps if adds_up else len(several))

    def _share_of(self, divisor: Tensor | None) -> int:
        """What a trainer (or the script) divided a micro-batch's mean by, so that their sum is the step's."""
        return self.parts if divisor is not None and self.parts > 1 and float(divisor) == self.parts else 1


class LossWatch:
    """Keeps the newest of the script's first loss; in a screen all losses, with those of all parts of a step."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._looks = session.uses(Watch.LOSSES)
        self.begins: Callable[[list[Tensor]], None] = lambda losses: None
        """Is given the losses of each backward, before it."""
        self.reduction = "" if self._looks else "unknown"
        self._first_site = ""
        self._newest: Tensor | None = None
        self._screens = session.request.seed is not None
        self._series: dict[str, _Series] = {}

    def see(self, losses: list[Tensor], *, alone: bool) -> bool:
        """Called before backward, which frees the graph. Returns whether it is a step's first loss: a GAN has several.

        ``alone`` is whether nothing but one loss is differentiated, from ones.
        """
        self.begins(losses)
        if not self._looks:
            return True
        first = losses[0]
        plain = getattr(first, _PLAIN, first)
        if not self.reduction:
            self.reduction = loss_reduction(plain) if alone and _is_scalar(first) else "unknown"
        site = _call_site()
        self._first_site = self._first_site or site
        leads = site == self._first_site
        if not self.session.measuring:
            return leads
        if self._screens:
            self._see_all(losses)
        elif _is_scalar(first) and (leads or self._newest is None):
            self._newest = plain.detach()
        return leads

    def _see_all(self, losses: list[Tensor]) -> None:
        place = line_stack()
        for number, loss in enumerate(losses):
            site = f"{place}#{number}" if number else place
            if not _is_scalar(loss) or (site not in self._series and len(self._series) >= _MOST_SERIES):
                continue
            plain = getattr(loss, _PLAIN, loss)
            if site not in self._series:
                self._series[site] = _Series(site, loss_reduction(plain))
            self._series[site].add(plain)

    def take(self) -> list[ReadLoss]:
        """The newest of the first training loss; waits for the device, so it is called once a block.

        In a screen, where every step is a block, each loss of the whole step: a batch in parts shows what it shows in
        one.
        """
        newest, self._newest = self._newest, None
        if newest is not None:
            return [ReadLoss("", "", float(newest))]
        self._join()
        return [
            ReadLoss(series.site, series.objective, series.take(adds_up=self._adds_up(series)))
            for series in self._series.values()
            if series.seen
        ]

    def step_ends(self) -> None:
        """All losses of a step were seen."""
        self._join()
        for series in self._series.values():
            series.steps += series.is_open
            series.is_open = False

    def _join(self) -> None:
        """Losses that go into one step have one objective: that of the first of them."""
        together = [series for series in self._series.values() if series.is_open]
        for series in together:
            series.objective = series.objective or together[0].objective or together[0].site

    def _adds_up(self, series: _Series) -> bool:
        # transformers divides the sum over a micro-batch by the number of items in the whole step.
        by_count = series.reduction == "count" and self.session.facts.trainer == "transformers"
        return series.reduction == "sum" or by_count


def remember_plain(scaled: Tensor, plain: object) -> None:
    """A gradient scaler's result stands for the loss that went in."""
    setattr(scaled, _PLAIN, plain)


def loss_reduction(loss: Tensor) -> str:
    """ "mean", "sum", "count" or "unknown": how the loss depends on the number of samples, read from its graph.

    Gradients of a summed loss add up over micro-batches as they are; those of a mean must be divided. A sum that the
    script divides by some count is either: by the micro-batch's own count it is a mean.
    """
    node, depth, divided = loss.grad_fn, 0, False
    while node is not None and depth < _DEPTH:
        name = type(node).__name__
        saved = getattr(node, "_saved_reduction", None)
        if saved == 1 or name.startswith("Mean"):
            return "mean"
        if saved == 2 or name.startswith("Sum"):
            return "count" if divided else "sum"
        divided |= name.startswith("Div")
        following = [n for n, _ in node.next_functions if n is not None]
        node, depth = (following[0] if following else None), depth + 1
    return "unknown"


def _is_scalar(loss: Tensor) -> bool:
    """Whether it is one number; backward also takes edges of a graph, which are none."""
    return hasattr(loss, "numel") and loss.numel() == 1


def _divisor(loss: Tensor) -> Tensor | None:
    """What the loss was divided by at last; None where that was something else.

    accelerate divides by its own number of parts, too, which is 1 where the trainer around it has divided already.
    """
    node = loss.grad_fn
    while node is not None and type(node).__name__.startswith("Div"):
        other: Tensor | None = getattr(node, "_saved_other", None)
        if other is None or other.numel() != 1:
            return None
        # A number of Python's lies on the CPU: to look at it waits for no device.
        if other.device.type != "cpu" or float(other) != 1.0:
            return other
        node = node.next_functions[0][0]
    return None


def _call_site() -> str:
    """File and line of the script's own call, to keep a GAN's losses apart."""
    # By where the library lies: a folder of the user's may well be called torch.
    library = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    own = ((name, line) for name, line in frames() if not name.startswith(library))
    name, line = next(own, ("?", 0))
    return f"{name.rsplit('/', 1)[-1]}:{line}"


def is_edge(start: object) -> bool:
    """Whether a backward begins there at an edge of a graph, and at no tensor."""
    return type(start).__name__ == "GradientEdge"


def leaves(losses: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors whose gradients a backward of these losses adds to."""
    starts: Iterator[Any] = iter(losses)
    nodes = (start.node if is_edge(start) else start.grad_fn for start in starts)
    waiting: list[Node] = [node for node in nodes if node is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
