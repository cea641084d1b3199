"""The format in which JAX's products of float32 are computed: the knob "precision".

JAX's own setting (``jax_default_matmul_precision``) goes for products of every type: with "BF16_BF16_F32" those of
whole numbers and of float64 are rounded to eight bits, too. So each product of float32 for which the script asks for
nothing is asked for by itself. What the script says stays: a ``precision=``, the setting, or a block under another one.
Convolutions stay as they are: JAX takes no such format for them.

What was asked for is read from what JAX compiles, which shows also what it traced before.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from types import ModuleType
from typing import Any

from ..applied import Effect
from ..evidence import Finding
from ..patches import patch
from ..records import Evidence
from ..session import Session
from . import FRAMEWORK
from .functions import JittedFunction
from .graphs import graphs_in
from .steps import StepWatch
from .types import Call

KNOB = "precision"
DEFAULT = "default"
"""What a product is counted under for which the script asks for nothing."""
PRODUCT, CONVOLUTION = "dot_general", "conv_general_dilated"
WORDS = {
    "HIGHEST": "fp32", "HIGH": "tf32", "DEFAULT": "tf32",
    "F32_F32_F32": "fp32", "TF32_TF32_F32": "tf32", "BF16_BF16_F32": "bf16",
}  # fmt: skip
"""JAX's names of what a product may be asked for, on a card that rounds to tf32."""
NO_PRODUCT = "the training steps have no product of float32"
NO_MATRIX_PRODUCT = "the training steps' products of float32 are convolutions, for which JAX takes no such format"
BY_ITSELF = "the script sets the precision of its products itself (jax_default_matmul_precision, or precision=)"
UNSEEN = "nothing shows how precise the products of the training steps are"
OLD = "this card computes in none but float32"

Asked = Counter[tuple[str, str]]
"""Kind of product, and what it was asked for → how many there are of float32."""


class ProductWatch:
    """What each function's products were asked for, and what they are asked for under the config.

    ``is_seen``: whether what JAX compiles is looked at.
    """

    def __init__(self, session: Session, steps: StepWatch, jax: ModuleType) -> None:
        self.session = session
        self.steps = steps
        self.jax: Any = jax
        self.is_seen = False
        self._of: weakref.WeakKeyDictionary[JittedFunction, Asked] = weakref.WeakKeyDictionary()
        self._alone: Asked = Counter()
        self._differentiated: set[tuple[str, str]] | None = None
        """Of what is run by itself, that a gradient is taken of; None where that isn't looked at."""

    def install(self) -> None:
        """Right after JAX's import, before anything is traced. Of a version without these places nothing is seen."""
        knobs = self.session.knobs
        if not (KNOB in knobs.requested or self.session.device.jax_may_round):
            return
        try:
            patch(sys.modules["jax._src.interpreters.mlir"], "lower_jaxpr_to_module", self._lower)
            self.is_seen = True
            if knobs.wants(KNOB):
                patch(self.jax.lax.dot_general_p, "bind", self._bind)
                self._differentiated = set()
        except (AttributeError, KeyError) as error:
            self.session.note(f"JAX's products aren't seen: {error}")

    # what the config asks for

    def _bind(self, original: Call) -> Call:
        wanted = self._in_words_of_jax(str(self.session.knobs.requested[KNOB]))

        def bind(*operands: Any, **options: Any) -> Any:
            if options.get("precision", wanted) is None and _is_float32(operands, options) and self._is_ours():
                options["precision"] = wanted
            seen = self._differentiated if self.steps.tracing.differentiates else None
            if seen is not None and _is_float32(operands, options):
                seen.add((PRODUCT, word_of(options.get("precision"))))
            return original(*operands, **options)

        return bind

    def _is_ours(self) -> bool:
        return self.session.may_be_of(FRAMEWORK) and self.session.knobs.wants(KNOB)

    def _in_words_of_jax(self, value: str) -> Any:
        """Raises ``AttributeError`` where this version can't be asked for it."""
        lax = self.jax.lax
        if value == "bf16":
            return lax.DotAlgorithmPreset.BF16_BF16_F32
        level = lax.Precision.HIGHEST if value == "fp32" else lax.Precision.HIGH
        return level, level

    # what was asked for

    def _lower(self, original: Call) -> Call:
        def lower_jaxpr_to_module(*args: Any, **kwargs: Any) -> Any:
            if not self.steps.stands_aside:
                try:
                    self._look_at(args[1] if len(args) > 1 else kwargs["jaxpr"])
                except Exception as error:  # a fault of ours mustn't keep JAX from compiling
                    self.is_seen = False
                    self.session.note(f"JAX's products aren't seen: {type(error).__name__}: {error}")
            return original(*args, **kwargs)

        return lower_jaxpr_to_module

    def _look_at(self, compiled: Any) -> None:
        asked = asked_in(compiled, {})
        frames = self.steps.tracing.frames
        function = frames[0].function if frames else None
        if isinstance(function, JittedFunction):
            self._of[function] = asked
        else:
            self._alone += asked

    @property
    def _asked(self) -> Asked:
        """By the training steps: of compiled functions that train, or, without any, of all that was run by itself.

        Of that only what gradients are taken of is the steps', where it is turned.
        """
        training = [asked for function, asked in self._of.items() if function.trains]
        if training or self._differentiated is None:
            return sum(training, Asked()) if training else self._alone
        of_steps = self._differentiated
        return Counter({key: count for key, count in self._alone.items() if key in of_steps or key[0] != PRODUCT})

    def _of_matrices(self) -> Counter[str]:
        return Counter({word: count for (kind, word), count in self._asked.items() if kind == PRODUCT})

    def _why_not(self, products: Counter[str]) -> str:
        """Why none of them can be asked for anything."""
        if not self.is_seen:
            return UNSEEN
        if not products:
            return NO_MATRIX_PRODUCT if self._asked else NO_PRODUCT
        return BY_ITSELF

    # what is told

    def written(self) -> None:
        """The script's own value, and those of the device; on others than cards nothing."""
        facts, device = self.session.facts, self.session.device
        if not device.jax_may_round:
            return
        facts.precisions = device.jax_precisions(self.jax)
        products = self._of_matrices()
        if products:
            word = DEFAULT if products[DEFAULT] else products.most_common(1)[0][0]
            facts.as_written[KNOB] = "tf32" if word == DEFAULT else word
        if not (self.is_seen and products[DEFAULT]):
            facts.left_out[KNOB] = self._why_not(products)
        elif len(facts.precisions) < 2:
            facts.left_out[KNOB] = OLD

    def report(self) -> None:
        """Evidence: of the products of float32 those that were asked for what the config says."""
        knobs = self.session.knobs
        if KNOB not in knobs.requested:
            return
        products, wanted = self._of_matrices(), knobs.requested[KNOB]
        if not self.is_seen:
            knobs.report(KNOB, Finding(Evidence.UNVERIFIABLE, UNSEEN))
        elif not products:
            knobs.inapplicable(KNOB, self._why_not(products))
        else:
            changed = products[str(wanted)]
            observed = wanted if changed else products.most_common(1)[0][0]
            why = "" if changed else self._why_not(products)
            knobs.compare(KNOB, observed, sites=products.total(), changed=changed, why=why)

    def effects(self) -> dict[str, Effect]:
        """For ``autotune run``."""
        products = self._of_matrices()
        count = products[str(self.session.knobs.wanted(KNOB))]
        return {KNOB: Effect(count, "" if count else self._why_not(products), is_unseen=not self.is_seen)}


def asked_in(jaxpr: Any, known: dict[int, Asked]) -> Asked:
    """What is asked for in a function's graph, and in the graphs within it: each of those counts where it is called."""
    graph = getattr(jaxpr, "jaxpr", jaxpr)
    if id(graph) in known:
        return known[id(graph)]
    asked = Asked()
    for equation in graph.eqns:
        kind = equation.primitive.name
        if kind in (PRODUCT, CONVOLUTION):
            if _is_float32([each.aval for each in equation.invars], equation.params):
                asked[kind, word_of(equation.params.get("precision"))] += 1
            continue
        for inner in graphs_in(equation):
            asked += asked_in(inner, known)
    known[id(graph)] = asked
    return asked


def word_of(precision: Any) -> str:
    """What a product is asked for, in the knob's words where it has one for it."""
    if precision is None:
        return DEFAULT
    names = {str(getattr(each, "name", each)) for each in (precision if isinstance(precision, tuple) else (precision,))}
    words = {WORDS.get(name, name) for name in names}
    return words.pop() if len(words) == 1 else " and ".join(sorted(words))


def _is_float32(operands: Any, options: Any) -> bool:
    types = {str(getattr(each, "dtype", None)) for each in operands}
    result = options.get("preferred_element_type")
    return types == {"float32"} and (result is None or str(result) == "float32")
