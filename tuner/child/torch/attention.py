"""Which kernel computes a model's scaled dot product attention: chosen, and seen by the gradient that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import ModuleType
from typing import Any

from ..session import Session
from .types import Keywords, Node

KNOB = "attention"
MATH = "math"
"""Plain matrix products and a softmax, which compute whatever the others can't."""
BACKENDS: Mapping[str, str] = {"flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn", MATH: "math"}
"""Value of the knob → PyTorch's word for it in its settings."""
_CHOSEN = {0: MATH, 1: "flash", 2: "efficient", 3: "cudnn"}
"""As PyTorch numbers them."""
_NODES = {
    "ScaledDotProductFlashAttention": "flash", "ScaledDotProductEfficientAttention": "efficient",
    "ScaledDotProductCudnnAttention": "cudnn",
}  # fmt: skip
_SHAPING = ("Slice", "Transpose", "View", "Reshape", "UnsafeView", "Alias")
"""Kernels that need a multiple of 8 pad what they are given, and cut off what they give."""
NOT_CALLED = "no scaled_dot_product_attention is called where the model trains"
COMPILED = "the script compiles its model: which attention runs isn't seen"
OWN_CHOICE = "the script chooses its attention itself"


class AttentionWatch:
    """What PyTorch is set to, and what the calls that were looked at ran.

    ``seen``: backends of the calls whose gradient shows it; ``choices``: those that each of these calls could have run.
    """

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self._session = session
        self._torch = torch
        self.seen: set[str] = set()
        self.choices: set[str] | None = None
        self._at_start = self.settings()
        self._set_by_script = False

    # what is set

    def settings(self) -> dict[str, bool]:
        """Value of the knob → whether PyTorch may take it; those that this version has."""
        cuda = self._torch.backends.cuda
        getters = {name: getattr(cuda, f"{word}_sdp_enabled", None) for name, word in BACKENDS.items()}
        return {name: bool(getter()) for name, getter in getters.items() if getter is not None}

    def put(self, settings: Mapping[str, bool]) -> None:
        """As ``settings`` gave them."""
        for name, may in settings.items():
            getattr(self._torch.backends.cuda, f"enable_{BACKENDS[name]}_sdp")(may)

    def choose(self, backend: str) -> None:
        """Has PyTorch take this one wherever it can, and plain products elsewhere: no call fails by it."""
        self.put(self._only(backend))
        self._at_start = self.settings()

    def restore(self, settings: Mapping[str, bool]) -> None:
        """The settings as they were before a backend was chosen."""
        self.put(settings)
        self._at_start = self.settings()

    def _only(self, backend: str) -> dict[str, bool]:
        return {name: name in (backend, MATH) for name in self._at_start}

    # what is seen

    def looking(self, *, compiled: bool) -> AbstractContextManager[object]:
        """Around a model's call: looks at each attention in it, whichever name the script calls it by.

        Not where something is ``compiled``: PyTorch would compile it anew for the sake of who listens.
        """
        if compiled:
            return nullcontext()
        return _listening(self._torch, self._called)

    def look_again(self) -> None:
        """Forgets what was seen."""
        self.seen = set()

    def _called(self, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> object:
        result = run(*args, **kwargs)
        if not getattr(result, "requires_grad", False):
            return result
        with suppress(Exception):  # a subclass of tensors may answer to nothing of this
            self.seen.add(_ran(result.grad_fn))
            self._set_by_script |= self.settings() != self._at_start
            possible = self._possible(args, kwargs)
            self.choices = possible if self.choices is None else self.choices & possible
        return result

    def _possible(self, args: tuple[Any, ...], kwargs: Keywords) -> set[str]:
        """What PyTorch would choose for such a call, were it to take one backend wherever it can."""
        before, possible = self.settings(), set()
        try:
            for backend in before:
                self.put({name: name in (backend, MATH) for name in before})
                possible.add(_CHOSEN.get(int(self._torch._fused_sdp_choice(*args, **kwargs)), ""))
        finally:
            self.put(before)
        return possible & set(BACKENDS)

    @property
    def observed(self) -> str:
        """What ran; "" where nothing showed it."""
        return " and ".join(sorted(self.seen))

    @property
    def why_another(self) -> str:
        """Why something else ran than what is set, where it did."""
        return OWN_CHOICE if self._set_by_script else f"{self.observed} ran: PyTorch has no other for these calls"

    # what is told

    def written(self, *, compiled: bool) -> None:
        """The facts of the script's own attention; none where it has none."""
        facts = self._session.facts
        if not self.seen:
            if compiled:
                facts.left_out[KNOB] = COMPILED
        elif self._set_by_script:
            facts.left_out[KNOB] = OWN_CHOICE
        else:
            facts.as_written[KNOB] = self.observed
            facts.attention_choices = sorted(self.choices or ())

    def report(self) -> None:
        """Evidence, where the config asks for a backend."""
        knobs = self._session.knobs
        if KNOB not in knobs.requested:
            return
        if not self.seen:
            knobs.inapplicable(KNOB, NOT_CALLED, sites=0)
        else:
            knobs.compare(KNOB, self.observed, why=self.why_another)


def _ran(node: Node | None) -> str:
    """The backend whose gradient this is, or that which was cut and turned into shape after it."""
    while node is not None:
        name = type(node).__name__
        for start, backend in _NODES.items():
            if name.startswith(start):
                return backend
        if not name.startswith(_SHAPING):
            break
        node = node.next_functions[0][0]
    return MATH


@contextmanager
def _listening(
    torch: ModuleType, called: Callable[[Callable[..., Any], tuple[Any, ...], Keywords], object]
) -> Iterator[None]:
    """Has ``called`` make each call of PyTorch's attention in this thread."""
    functional = torch.nn.functional
    attends, layer = functional.scaled_dot_product_attention, functional.multi_head_attention_forward

    class Listening(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]  # known once it is imported
        def __torch_function__(
            self, function: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
            kwargs: Keywords | None = None,
        ) -> object:  # fmt: skip
            if function is attends:
                return called(function, args, kwargs or {})
            # What PyTorch's own layer calls isn't told of any more: it looks the function up in its module.
            with replaced() if function is layer else nullcontext():
                return function(*args, **(kwargs or {}))

    @contextmanager
    def replaced() -> Iterator[None]:
        functional.scaled_dot_product_attention = lambda *args, **kwargs: called(attends, args, kwargs)
        try:
            yield
        finally:
            functional.scaled_dot_product_attention = attends

    with Listening():
        yield
