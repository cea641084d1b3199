"""What is known of a script: what this and earlier versions stored of it is read, and a study adds to it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support import worlds

from tuner.child.counts import ScalerCounts
from tuner.child.records import LoaderUse
from tuner.errors import UsageError
from tuner.knowledge import Knowledge, as_document, first_knowledge, read, widened, with_arguments
from tuner.model import BASELINE, Config, Phase, Trial, Value

ACCUMULATION = "grad_accumulation"
STORED = {
    "as_written": {"batch_size": 16, "num_workers": 0, "lr_scale": 1.0, "pin_memory": False, "precision": "fp32"},
    "left_out": {"compile": "the script calls torch.compile itself"}, "suggested": [], "steps": 57, "samples": 912.0,
    "framework": "torch", "framework_version": "2.13.0", "unit": "samples", "training_loaders": ["train.py:7#0"],
    "loaders": [{"key": "train.py:7#0", "fetches": 58, "made": 1}, {"key": "train.py:9#0", "fetches": 0}],
    "dataset_len": 1000, "gradient_scaler": {"steps": 9, "skipped": 1, "late_steps": 0, "late_skipped": 0},
    "input_plan": [[0, "Prefetch", 4, None], [1, "MapAndBatch", "auto", 2]], "batch_norm": True,
    "beside": {"prefetch": {"input": "fast", "deep": True}}, "effective_batch": "free", "device_clean": False,
}  # fmt: skip


def test_what_was_stored_is_read() -> None:
    known = read(json.loads(json.dumps(STORED)))
    assert known.as_written == STORED["as_written"]
    assert [type(value) for value in known.as_written.values()] == [int, int, float, bool, str]
    assert known.training_loaders == ("train.py:7#0",)
    assert known.loaders == (LoaderUse("train.py:7#0", 58, 1), LoaderUse("train.py:9#0", 0))
    assert known.gradient_scaler == ScalerCounts(9, 1)
    assert known.input_plan == ((0, "Prefetch", 4, None), (1, "MapAndBatch", "auto", 2))
    assert known.beside == {"prefetch": {"input": "fast", "deep": True}}
    assert (known.effective_batch, known.device_clean, known.suggested) == ("free", False, ())


def test_its_document_holds_what_is_known_only() -> None:
    known = read(STORED)
    assert read(json.loads(json.dumps(as_document(known)))) == known
    assert as_document(Knowledge()) == {}
    assert as_document(Knowledge(input_plan=(), cache_bytes=0)) == {"input_plan": (), "cache_bytes": 0}
    assert "suggested" not in as_document(known) and "backwards" not in as_document(known)


def test_what_an_earlier_version_stored_is_read() -> None:
    old = {
        "as_written": {"shape": [1, 2], "nothing": None, "mode": "auto"}, "left_out": None, "dataset_len": None,
        "cardinality": -1, "steps": 3.0, "samples": 96, "gradient_scaler": None, "of_a_later_version": {"x": 1},
        "loaders": [{"key": "a", "fetches": 1, "made": None, "of_a_later_version": 2}], "input_plan": None,
        "arguments": {"batch_size": None, "sizes": [1], "lr": 0.1}, "remarks": [], "unit": None,
    }  # fmt: skip
    assert read(old) == Knowledge(
        as_written={"shape": "[1, 2]", "mode": "auto"}, cardinality=-1, steps=3, samples=96.0,
        loaders=(LoaderUse("a", 1),), arguments={"lr": 0.1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "knowledge is [], not an object"),
        (None, "knowledge is None, not an object"),
        ({"as_written": 3}, "knowledge.as_written is 3, not an object"),
        ({"steps": "many"}, "knowledge.steps is 'many', not a whole number"),
        ({"steps": float("inf")}, "knowledge.steps is inf, not a whole number"),
        ({"batch_norm": 1}, "knowledge.batch_norm is 1, not true or false"),
        ({"remarks": "one"}, "knowledge.remarks is 'one', not a list"),
        ({"optimizers": ["SGD", 2]}, "knowledge.optimizers[1] is 2, not a text"),
        ({"beside": {"workers": "fast"}}, "knowledge.beside.workers is 'fast', not an object"),
        ({"loaders": [{"key": "a"}]}, "knowledge.loaders[0] lacks fetches"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(document: object, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        read(document)
    assert str(raised.value) == message


def test_before_the_baseline_the_arguments_are_all_that_is_known() -> None:
    known = first_knowledge({"batch_size": 64, "layout": None})
    assert known == Knowledge(placeholders=("batch_size", "layout"), as_written={"batch_size": 64})


@pytest.mark.parametrize(
    ("given", "shown", "as_written"),
    [
        (32, {"as_written": {"batch_size": 8}}, 32),
        (None, {"as_written": {"batch_size": 8}}, 8),
        (None, {"arguments": {"batch_size": 16}}, 16),
        (None, {"arguments": {"batch_size": "16"}}, 16),
        (None, {"arguments": {"batch_size": "relu"}}, "relu"),
        (None, {"as_written": {"batch_size": 8}, "arguments": {"batch_size": 16}}, 8),
        (False, {"left_out": {"batch_size": "a reason"}}, False),
    ],
)
def test_the_scripts_own_value_is_what_was_given_else_seen(
    given: Value | None, shown: dict[str, Any], as_written: Value
) -> None:
    before = Knowledge(**shown)
    known = with_arguments(before, {"batch_size": given})
    assert known == replace(before, as_written={"batch_size": as_written}, left_out={}, placeholders=("batch_size",))
    assert type(known.as_written["batch_size"]) is type(as_written)


@pytest.mark.parametrize("shown", [{}, {"arguments": {"batch_size": None}}, {"arguments": {"batch_size": [1]}}])
def test_a_value_that_nothing_shows_is_asked_for(shown: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="can't be seen") as caught:
        with_arguments(read(shown), {"batch_size": None})
    assert "{batch_size=64}" in caught.value.hint


KNOWN = Knowledge(framework="torch", as_written={"input": "slow", "precision": "fp32"}, left_out={"compile": "why"})
SHOWN = replace(
    KNOWN, as_written={"input": "fast", "precision": "bf16", "workers": 0, "compile": "off", "cache": True},
    left_out={"cache": "why not"}, batch_norm=True, input_plan=(), dataset_len=10,
)  # fmt: skip


def _trial(**config: Value) -> Trial:
    outcome = replace(worlds.measured(100.0), knowledge=SHOWN)
    return Trial(1, Phase.SEARCH, Config(config), "", outcome)


def test_another_value_of_an_argument_may_bring_more_knobs() -> None:
    wider = widened(KNOWN, {"input": "slow"}, [_trial(input="fast", precision="bf16")])
    assert wider == replace(
        KNOWN, as_written={**KNOWN.as_written, "workers": 0}, beside={"workers": {"input": "fast"}},
        input_plan=(),
    )  # fmt: skip


def test_what_brings_nothing_new_leaves_knowledge_as_it_is() -> None:
    failed = replace(_trial(input="fast"), outcome=replace(worlds.infeasible("nan"), knowledge=SHOWN))
    for trials in ([], [Trial(0, Phase.BASELINE, BASELINE)], [_trial(precision="bf16")], [failed]):
        assert widened(KNOWN, {"input": "slow"}, trials) is KNOWN
    wider = widened(KNOWN, {"input": "slow"}, [_trial(input="fast")])
    assert widened(wider, {"input": "slow"}, [_trial(input="fast"), _trial(input="other")]) is wider


@pytest.mark.parametrize(
    ("knowledge", "config", "size"),
    [
        (Knowledge(framework="torch"), {"batch_size": 4, ACCUMULATION: 4}, 16),
        (Knowledge(framework="torch", as_written={"batch_size": 8}), {ACCUMULATION: 4}, 32),
        (Knowledge(framework="torch"), {"batch_size": 4}, 4),
        (Knowledge(framework="keras"), {"batch_size": 4, ACCUMULATION: 4}, 16),
        (Knowledge(framework="keras", placeholders=("batch_size",)), {"batch_size": 4, ACCUMULATION: 4}, 16),
        (Knowledge(framework="keras", options={ACCUMULATION: "accum"}), {"batch_size": 4, ACCUMULATION: 4}, 4),
        (Knowledge(framework="torch", trainer="transformers"), {"batch_size": 4, ACCUMULATION: 4}, 4),
        (Knowledge(framework="torch", placeholders=(ACCUMULATION,)), {"batch_size": 4, ACCUMULATION: 4}, 4),
        (Knowledge(framework="torch", options={ACCUMULATION: "accum"}), {"batch_size": 4, ACCUMULATION: 4}, 4),
        (Knowledge(framework="torch", suggested=(ACCUMULATION,)), {"batch_size": 4, ACCUMULATION: 4}, 4),
    ],
)
def test_the_script_is_given_the_whole_of_a_batch_that_a_patch_splits(
    knowledge: Knowledge, config: dict[str, Value], size: int
) -> None:
    given = knowledge.given(config)
    assert given["batch_size"] == size
    assert {**given, "batch_size": 0} == {**config, "batch_size": 0}
