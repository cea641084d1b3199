"""The training losses that a script calls backward on, in its own units, however it splits or scales them."""

from __future__ import annotations

import os
import sys

from ..call_sites import frames
from ..session import Session
from ..watch import Watch
from .types import Tensor

_PLAIN = "_autotune_plain"
_DEPTH = 12


class LossWatch:
    """Keeps the newest loss, and in a screen those of all micro-batches of a step."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._looks = session.uses(Watch.LOSSES)
        self.reduction = "" if self._looks else "unknown"
        self._sites: list[str] = []
        self._newest: Tensor | None = None
        self._of_step: list[tuple[Tensor, Tensor | None]] = []
        self._steps = 0
        self._parts = 1

    def see(self, loss: Tensor, *, alone: bool) -> bool:
        """Called before backward, which frees the graph. Returns whether it is a step's first loss: a GAN has several.

        ``alone`` is whether nothing but this loss is differentiated.
        """
        if not self._looks:
            return True
        plain = getattr(loss, _PLAIN, loss)
        if not self.reduction:
            self.reduction = loss_reduction(plain) if alone and loss.numel() == 1 else "unknown"
        site = _call_site()
        if site not in self._sites and len(self._sites) < 16:
            self._sites.append(site)
        leads = site == self._sites[0]
        if loss.numel() == 1 and (leads or self._newest is None) and self.session.measuring:
            self._newest = plain.detach()
            if self.session.request.seed is not None:
                self._of_step.append((self._newest, _divisor(plain)))
        return leads

    def take(self) -> float | None:
        """The newest training loss; waits for the device, so it is called once a block.

        In a screen, where every step is a block, that of the whole step: a batch in parts shows what it shows in one.
        """
        loss, self._newest = self._newest, None
        several, self._of_step = self._of_step, []
        steps, self._steps = max(1, self._steps), 0
        if not several:
            return None if loss is None else float(loss)
        # The last step of an epoch may have fewer parts than the others.
        self._parts = max(self._parts, round(len(several) / steps))
        total = sum(float(value) * self._share_of(divisor) for value, divisor in several)
        return total / steps if self._adds_up() else total / len(several)

    def step_ends(self) -> None:
        """All parts of a step were seen. The first block holds two of them: the clock starts with the first."""
        self._steps += 1

    def _share_of(self, divisor: Tensor | None) -> int:
        """What a trainer (or the script) divided a micro-batch's mean by, so that their sum is the step's."""
        return self._parts if divisor is not None and self._parts > 1 and float(divisor) == self._parts else 1

    def _adds_up(self) -> bool:
        # transformers divides the sum over a micro-batch by the number of items in the whole step.
        by_count = self.reduction == "count" and self.session.facts.trainer == "transformers"
        return self.reduction == "sum" or by_count


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
