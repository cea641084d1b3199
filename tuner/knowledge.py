"""What is known of a script, on the parent's side: reading it from JSON, and what a study adds to it. Pure.

``Knowledge`` itself is declared with the records that cross the wire, in ``tuner.child.records``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from tuner.child import shape
from tuner.child.records import Knowledge as Knowledge
from tuner.child.records import hold_lines as hold_lines
from tuner.errors import UsageError
from tuner.model import Trial, Value

Bound = Mapping[str, Value | None]
"""The knobs that are bound to arguments of the script → the script's own value, None where only the script knows it."""


def read(document: object, place: str = "knowledge") -> Knowledge:
    """Knowledge from JSON's own types, as this or an earlier version wrote it.

    Null is unknown, a name that this version doesn't know is skipped, and a value of the script's own that no knob
    could take is its text. Raises ``ValueError`` naming the place and what stands there for anything else that isn't
    as ``Knowledge`` declares it.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"{place} is {document!r:.60}, not an object")
    return shape.read(Knowledge, {name: _repaired(name, entry) for name, entry in _without_nulls(document)}, place)


def as_document(knowledge: Knowledge) -> dict[str, Any]:
    """The inverse of ``read``: names → values of JSON's own types, or tuples of them. What is unknown is absent."""
    return {name: entry for name, entry in asdict(knowledge).items() if entry != _UNKNOWN[name]}


_UNKNOWN = asdict(Knowledge())
_SENT_WHERE_SEEN = frozenset({
    "trainer", "loop", "fed_by", "cardinality", "optimizer_choices", "attention_choices", "products", "gradient_scaler",
    "remarks", "compile_choices", "set_apart",
    "wait_is_unseen", "epoch", "tokens_per_sample", "lengths_vary", "written_tokens_per_sample", "input_plan",
    "cache_bytes", "gradient_bytes", "batch_waits", "module_hashes", "instruments_s",
})  # fmt: skip
"""What a framework's adapter sends only where there is something to tell; of the rest, empty means that there is none.

So ``dataset_len``: a stream has no length, and must not get that of the data which another argument brings.
"""
_OF_THE_PARSER = frozenset({"options", "option_flags", "arguments"})
"""What the script's parser tells of its own options in each run, also where a run has nothing else to tell."""


KEEP, FREE, BOTH = "keep", "free", "both"
"""Whether samples per optimizer step stay as written, may change, or both are explored, each as a contest."""
BATCH_KNOBS = ("batch_size", "grad_accumulation")
"""Those that say how large the parts are that a step computes its samples in, and how many."""


def count_of(values: Mapping[str, Value], knob: str, otherwise: int = 1) -> int:
    """A knob's whole number; a script may write anything, such as ``auto``."""
    value = values.get(knob)
    return value if type(value) is int else otherwise


def samples_per_step(values: Mapping[str, Value]) -> int:
    """The effective batch of a complete config: samples per optimizer step."""
    return math.prod(count_of(values, knob) for knob in BATCH_KNOBS)


def changes_batch(config: Mapping[str, Value], knowledge: Knowledge) -> bool:
    """Whether a config trains each optimizer step on more or fewer samples than the script as written."""
    written = knowledge.as_written
    return samples_per_step({**written, **config}) != samples_per_step(written)


def batch_factor(config: Mapping[str, Value], knowledge: Knowledge) -> float:
    """How many times the samples of an optimizer step as written a config's step trains on."""
    written = knowledge.as_written
    return samples_per_step({**written, **config}) / max(1, samples_per_step(written))


def first_knowledge(bound: Bound) -> Knowledge:
    """What is known before the baseline has run: the bound knobs, and the values that the arguments give them."""
    given = {knob: value for knob, value in bound.items() if value is not None}
    return Knowledge(placeholders=tuple(bound), as_written=given)


def with_arguments(knowledge: Knowledge, bound: Bound) -> Knowledge:
    """What the baseline showed, with what the arguments say of the bound knobs.

    A knob that the arguments give no value has the one that the child observed, else the one that the script's parser
    held (``knowledge.arguments``). Raises ``UsageError`` where neither shows it.
    """
    as_written, left_out = dict(knowledge.as_written), dict(knowledge.left_out)
    for knob, given in bound.items():
        parsed = knowledge.arguments.get(knob)
        if given is not None:
            as_written[knob] = given
        elif knob not in as_written and parsed is not None:
            # An option without a type: its default is a text, also where a number is meant.
            as_written[knob] = typed_value(parsed) if isinstance(parsed, str) else parsed
        if knob not in as_written:
            raise UsageError(
                f"{{{knob}}} binds a knob whose value in the script can't be seen",
                hint=f"give the script's own value, as in {{{knob}=64}}",
            )
        # Whatever kept instrumentation from it doesn't matter: the script takes it as an argument.
        left_out.pop(knob, None)
    return replace(knowledge, as_written=as_written, left_out=left_out, placeholders=tuple(bound))


def widened(knowledge: Knowledge, bound: Bound, trials: Iterable[Trial]) -> Knowledge:
    """With the knobs that only another value of an argument brings, such as those of another loader.

    The first complete trial that shows one tells how the script wrote it; ``beside`` keeps the arguments that it takes.
    What was known stays, and what was unknown is as that trial showed it. The very same object where there is nothing
    to add.
    """
    for trial in trials:
        arguments = {knob: value for knob, value in trial.config.items() if knob in bound}
        if not arguments or trial.outcome is None or not trial.outcome.complete:
            continue
        shown = trial.outcome.knowledge
        seen = {*knowledge.as_written, *knowledge.left_out, *shown.left_out, *trial.config}
        new = {knob: value for knob, value in shown.as_written.items() if knob not in seen}
        if new:
            knowledge = replace(
                _completed(knowledge, shown),
                as_written={**knowledge.as_written, **new},
                beside={**knowledge.beside, **dict.fromkeys(new, arguments)},
            )
    return knowledge


def typed_value(text: str) -> Value:
    """A knob's value as it is written on a command line: true, false, a finite number, else a word."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text != text.strip() or "_" in text:
        return text  # numbers to Python, but 2024_01 is somebody's name
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        # A NaN equals nothing, not even itself, so it can't be a choice; as a word it reaches the script all the same.
        return value if math.isfinite(value) else text
    return text


def _completed(knowledge: Knowledge, other: Knowledge) -> Knowledge:
    """What is unknown in the one is as in the other."""
    unknown = Knowledge()
    names = _SENT_WHERE_SEEN if knowledge.framework else _UNKNOWN.keys() - _OF_THE_PARSER
    lacking = [name for name in names if getattr(knowledge, name) == getattr(unknown, name)]
    return replace(knowledge, **{name: getattr(other, name) for name in lacking})


def _without_nulls(document: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return [(str(name), entry) for name, entry in document.items() if entry is not None]


def _repaired(name: str, entry: Any) -> Any:
    """An entry as earlier versions wrote it, in the types that are declared now."""
    if isinstance(entry, Mapping):
        known = dict(_without_nulls(entry))
        if name == "arguments":  # a list's text isn't what a bound knob was given
            return {knob: value for knob, value in known.items() if isinstance(value, Value)}
        if name == "as_written":
            return {knob: value if isinstance(value, Value) else str(value) for knob, value in known.items()}
        return {key: _repaired("as_written" if name == "beside" else "", value) for key, value in known.items()}
    return [_repaired("", part) for part in entry] if isinstance(entry, (list, tuple)) else entry
