"""The declared knobs of PyTorch beside what users write: pins, placeholders, values that are no numbers."""

from __future__ import annotations

from typing import Any

import pytest
from support import worlds

from search_spaces.batches import LEAVES_OUT
from search_spaces.keras import SPACE as KERAS
from search_spaces.torch import SPACE
from tuner.child.counts import EpochUse
from tuner.errors import UsageError
from tuner.knowledge import Knowledge, with_arguments
from tuner.model import Config, Value
from tuner.space.applicable import beyond_cores
from tuner.space.arguments import bound_knobs, extend_space, parse
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

WRITTEN: dict[str, Value] = {
    "batch_size": 64, "grad_accumulation": 1, "num_workers": 0, "prefetch_factor": 2, "persistent_workers": False,
    "precision": "fp32", "compile": "off",
}  # fmt: skip


def space(
    *argv: str, free: bool = False, unit: str = "", pinned: dict[str, Value] | None = None, **written: Value
) -> ResolvedSpace:
    placeholders = parse(argv)
    knowledge = Knowledge(
        as_written={**WRITTEN, **written}, dataset_len=1000, precisions=("fp32", "bf16"),
        effective_batch="free" if free else "keep", unit=unit,
    )  # fmt: skip
    known = Known(worlds.DEVICE, 4, knowledge=with_arguments(knowledge, bound_knobs(placeholders)))
    return resolve(extend_space(SPACE, placeholders), known, pinned=pinned or {})


def test_the_effective_batch_is_kept_with_the_users_own_batch_sizes() -> None:
    bound = "--b={batch_size=64|16|96|128}"
    kept = space(bound)
    assert [size for size in (16, 64, 96, 128) if kept.allows({"batch_size": size})] == [16, 64]
    assert kept.canonical({"batch_size": 16}) == {"batch_size": 16, "grad_accumulation": 4}
    assert space(bound, free=True).allows({"batch_size": 128})


@pytest.mark.parametrize(("unit", "searched"), [("samples", True), ("steps", False), ("", True)])
def test_a_freed_batch_is_not_searched_in_steps(unit: str, searched: bool) -> None:
    """The smallest one would have most steps in a second. What is kept trains on as many samples a step."""
    bound = "--b={batch_size=64|16|128}"
    assert ("batch_size" not in space(bound, free=True, unit=unit).left_out) is searched
    assert "batch_size" not in space(bound, unit=unit).left_out


@pytest.mark.parametrize(
    ("changes", "offered"),
    [({}, False), ({"options": {"grad_accumulation": "parts"}}, True), ({"trainer": "transformers"}, True)],
)
def test_a_freed_step_is_made_of_parts_where_something_gives_it_more(changes: dict[str, Any], *, offered: bool) -> None:
    """Halves of the batch that a loop makes by itself are no larger one: its rate was doubled all the same."""
    why = "no DataLoader feeds the training steps"
    knowledge = Knowledge(as_written=WRITTEN, left_out={"batch_size": why}, effective_batch="free", **changes)
    found = resolve(SPACE, Known(worlds.DEVICE, 4, knowledge=knowledge))
    assert ("grad_accumulation" in {axis.knob.name for axis in found.axes}) is offered
    assert offered or why in found.left_out["grad_accumulation"].reason


def test_the_faster_implementation_of_an_update_is_tried_first() -> None:
    """On a processor foreach loops over the tensors as the plain update does, and takes as long."""
    written: dict[str, Value] = {**WRITTEN, "optimizer": "default"}
    knowledge = Knowledge(as_written=written, optimizer_choices=("foreach", "fused"), precisions=("fp32",))
    known = Known(worlds.DEVICE, 4, knowledge=knowledge)
    (axis,) = [each for each in resolve(SPACE, known).axes if each.knob.name == "optimizer"]
    assert [value for value in axis.values if value != "default"] == ["fused", "foreach"]


def test_what_is_pinned_is_not_forbidden() -> None:
    pinned = space(pinned={"batch_size": 128})
    assert pinned.allows(pinned.canonical({"num_workers": 2}))


def test_a_count_that_is_no_number_is_refused_where_it_is_bound_and_borne_where_it_is_written() -> None:
    for argument in ("{batch_size=auto|64}", "{num_workers=auto}", "{batch_size=64.0|128.0}"):
        with pytest.raises(UsageError, match="whole number"):
            extend_space(SPACE, parse([f"--x={argument}"]))
    odd = space(num_workers="auto", batch_size="auto")
    assert odd.canonical({"precision": "bf16"}) == {"precision": "bf16"}
    assert odd.left_out["batch_size"].reason == "the script's own value is auto, which is no whole number"
    assert "auto" in space(num_workers="auto", batch_size="auto", free=True).left_out["num_workers"].reason


def test_words_are_the_scripts_own_where_they_are_bound() -> None:
    bound = space("--dtype={precision=float32|bfloat16}", "--compile={compile=true|false}", pinned={"compile": False})
    assert bound.pinned == {"compile": False}
    assert bound.space.knob("compile").value_type is None
    assert next(a.values for a in bound.axes if a.knob.name == "precision") == ("float32", "bfloat16")


def test_a_pinned_word_is_one_of_those_there_are() -> None:
    assert space(pinned={"precision": "bf16", "compile": "off"}).pinned["compile"] == "off"
    with pytest.raises(UsageError, match="precision=banana") as raised:
        space(pinned={"precision": "banana"})
    assert raised.value.hint == "they are: fp32, bf16"


@pytest.mark.parametrize(
    ("config", "proven_on", "told"),
    [({"num_workers": 16}, 2, False), ({"num_workers": 16}, 16, True), ({"num_workers": 16}, None, True),
     ({"threads": 8}, 2, True), ({"threads": 8}, 16, True), ({"num_workers": 4}, 16, False)],
)  # fmt: skip
def test_more_workers_than_cores_were_proven_to_wait(
    config: dict[str, Value], proven_on: int | None, *, told: bool
) -> None:
    known = Known(worlds.DEVICE, 4, knowledge=Knowledge(as_written={"threads": 4, "num_workers": 0}))
    assert beyond_cores(Config(config), known, [SPACE], proven_on) == (list(config) if told else [])


LR: dict[str, Value] = {"lr_scale": 1.0}


def both(*argv: str, pinned: dict[str, Value] | None = None, ranks: int = 1, **changes: Any) -> ResolvedSpace:
    """The space of a study that tries larger batches beside what keeps the effective one."""
    placeholders = parse(argv)
    written: dict[str, Value] = {**WRITTEN, **LR, **changes.pop("written", {})}
    given: dict[str, Any] = {
        "dataset_len": 1000, "unit": "samples", "loss_reduction": "mean", "optimizers": ("SGD",),
        "effective_batch": "both", "precisions": ("fp32", "bf16"),
    }  # fmt: skip
    knowledge = Knowledge(as_written=written, **{**given, **changes})
    known = Known(worlds.DEVICE, 4, knowledge=with_arguments(knowledge, bound_knobs(placeholders)), ranks=ranks)
    return resolve(extend_space(SPACE, placeholders), known, pinned=pinned or {})


def larger(space: ResolvedSpace) -> tuple[Value, ...]:
    return space.larger.values[1:] if space.larger is not None else ()


def test_larger_batches_are_multiples_as_far_as_an_epoch_reaches_and_bring_their_rate() -> None:
    where = both()
    assert larger(where) == (128, 256, 512)
    assert larger(both(dataset_len=None)) == (128, 256, 512, 1024)
    assert where.with_larger({}, 256) == {"batch_size": 256, "lr_scale": 4.0}
    assert where.with_larger({"precision": "bf16", "batch_size": 16, "grad_accumulation": 4}, 128) == {
        "precision": "bf16", "batch_size": 128, "lr_scale": 2.0
    }  # fmt: skip
    adam = both(optimizers=("AdamW",))
    assert adam.with_larger({}, 256) == {"batch_size": 256, "lr_scale": 2.0}
    own_rate = both(left_out={"lr_scale": "the rate is the script's own"})
    assert own_rate.with_larger({}, 256) == {"batch_size": 256}


def test_what_keeps_the_batch_is_searched_as_before() -> None:
    where, kept = both(), space()
    assert where.axes == kept.axes
    assert where.keeps_batch({"batch_size": 16, "grad_accumulation": 4}) and where.keeps_batch({})
    assert not where.keeps_batch({"batch_size": 128, "lr_scale": 2.0}) and where.is_larger({"batch_size": 128})
    assert not kept.is_larger({"batch_size": 128}) and not kept.keeps_batch({"batch_size": 128})


def test_a_script_that_accumulates_computes_larger_batches_whole() -> None:
    where = both(written={"batch_size": 16, "grad_accumulation": 4})
    assert larger(where) == (128, 256, 512)
    config = where.with_larger({}, 128)
    assert config == {"batch_size": 128, "grad_accumulation": 1, "lr_scale": 2.0}
    assert where.keeps_batch({"batch_size": 64, "grad_accumulation": 1}) and where.keeps_batch({"batch_size": 32})
    by_itself = both(
        written={"batch_size": 16, "grad_accumulation": 4}, left_out={"grad_accumulation": "by the script's own loop"}
    )
    assert larger(by_itself) == (32, 64, 128)
    assert by_itself.with_larger({}, 64) == {"batch_size": 64, "lr_scale": 4.0}
    of_unknown_length = both(
        written={"batch_size": 16, "grad_accumulation": 4}, left_out={"grad_accumulation": "by the script's own loop"},
        dataset_len=None,
    )  # fmt: skip
    assert larger(of_unknown_length) == (32, 64, 128, 256)


def test_a_larger_batch_keeps_what_an_epoch_trains_on() -> None:
    """Of 10,000 samples in whole batches of 64 alone an epoch trains on 9,984, in batches of 1,024 on 9,216."""
    whole = EpochUse(batches=157, samples=157 * 64.0)
    assert larger(both(epoch=whole, dataset_len=10_000)) == (128, 256, 512, 1024)
    without_last = EpochUse(batches=156, samples=156 * 64.0)
    assert larger(both(epoch=without_last, dataset_len=10_000)) == (128, 256, 512)
    exactly = EpochUse(batches=20, samples=1280.0)
    assert larger(both(epoch=exactly, dataset_len=1280)) == (128, 256)  # two of 512 may be all that is left
    of_fewer = both(epoch=EpochUse(batches=5, samples=320.0))
    assert larger(of_fewer) == () and of_fewer.no_larger == LEAVES_OUT  # two of 128 samples fit
    of_one = both(epoch=EpochUse(batches=1, samples=64.0), dataset_len=100)
    assert larger(of_one) == () and of_one.no_larger == "no larger batch fits into an epoch"


def test_a_larger_batch_of_one_of_several_ranks_fits_into_its_own_part_of_an_epoch() -> None:
    """Of 2,000 samples each of two ranks is dealt 1,000; in whole batches of 128 alone it would train on 896."""
    dealt = EpochUse(batches=16, samples=2 * 16 * 64.0)
    assert larger(both(epoch=dealt, dataset_len=2000, ranks=2)) == (128, 256, 512)
    assert larger(both(epoch=None, dataset_len=2000, ranks=2)) == (128, 256, 512)
    without_last = EpochUse(batches=15, samples=2 * 15 * 64.0)
    assert larger(both(epoch=without_last, dataset_len=2000, ranks=2)) == ()
    of_its_own = EpochUse(batches=16, samples=2 * 16 * 64.0)
    assert larger(both(epoch=of_its_own, dataset_len=1024, ranks=2)) == (128, 256, 512, 1024)


def test_a_pinned_accumulation_stays_beside_a_larger_batch_and_counts_for_its_rate() -> None:
    """Four batches of 64 each are 256 samples a step, four times as many as before: so is the rate."""
    where = both(written={"batch_size": 16, "grad_accumulation": 4}, pinned={"grad_accumulation": 4})
    assert larger(where) == (32, 64, 128)
    assert where.with_larger({}, 64) == {"batch_size": 64, "grad_accumulation": 4, "lr_scale": 4.0}
    assert where.left_out["batch_size"].reason == (
        "it would change the effective batch (see --effective-batch), since grad_accumulation is pinned to 4"
            "; larger effective batches are tried all the same"
    )


def test_a_batch_of_the_users_own_is_in_the_contest_that_it_belongs_to() -> None:
    where = both("--b={batch_size=64|16|96|128}")
    assert larger(where) == (96, 128)
    assert where.with_larger({}, 96) == {"batch_size": 96, "lr_scale": 1.5}
    assert where.allows({"batch_size": 16}) and not where.allows({"batch_size": 96})


@pytest.mark.parametrize(
    "pinned", [{"batch_size": 128}, {"grad_accumulation": 2}], ids=["batch_size", "grad_accumulation"]
)
def test_who_pins_the_batch_has_chosen_by_himself(pinned: dict[str, Value]) -> None:
    """Nothing follows from it but what followed before, and it is no contest of its own."""
    where = both(pinned=pinned)
    assert where.larger is None and where.no_larger
    assert where.canonical({}) == space(pinned=pinned).canonical({})
    assert where.keeps_batch(where.canonical({"num_workers": 2}))


def test_a_selection_leaves_them_out() -> None:
    knowledge = Knowledge(as_written={**WRITTEN, **LR}, effective_batch="both")
    known = Known(worlds.DEVICE, 4, knowledge=knowledge)
    for selection, tried in (((), True), (("batch_size",), True), (("num_workers",), False), (("-batch_size",), False)):
        assert (resolve(SPACE, known, selection=selection).larger is not None) is tried


@pytest.mark.parametrize(
    ("written", "emulated", "late"),
    [("fp32", ("bf16",), True), ("fp32", (), False), ("bf16", ("bf16",), False)],
)
def test_a_number_format_that_is_emulated_comes_late(written: str, emulated: tuple[str, ...], *, late: bool) -> None:
    """Another one than the script's own; one that the script wrote may well be left for float32."""
    knowledge = Knowledge(
        as_written={**WRITTEN, "precision": written}, precisions=("fp32", "bf16"), emulated_precisions=emulated
    )
    for declared in (SPACE, KERAS):
        resolved = resolve(declared, Known(worlds.DEVICE, 4, knowledge=knowledge), selection=["precision"])
        told = "this processor has no instructions for bf16" if late else ""
        assert [axis.unlikely for axis in resolved.axes] == [told]


@pytest.mark.parametrize(
    ("left_out", "workers", "reason"),
    [
        ({}, 0, ""),
        ({"num_workers": "the data change"}, 0, "it means nothing with num_workers=0"),
        ({"num_workers": "the data change"}, 2, ""),
    ],
)
def test_what_no_config_gives_a_meaning_is_left_out(left_out: dict[str, str], workers: int, reason: str) -> None:
    """It would be told as searched, multiply the number of configs, and never be tried."""
    knowledge = Knowledge(as_written={**WRITTEN, "num_workers": workers}, left_out=left_out)
    known = Known(worlds.DEVICE, 4, knowledge=knowledge)
    resolved = resolve(SPACE, known, selection=["num_workers", "prefetch_factor", "persistent_workers"])
    searched = {axis.knob.name for axis in resolved.axes}
    for name in ("prefetch_factor", "persistent_workers"):
        assert (name not in searched) is bool(reason)
        assert (resolved.left_out[name].reason if reason else "") == reason
    begun = resolve(SPACE, known, selection=["num_workers", "prefetch_factor"], begun_with=["prefetch_factor"])
    assert "prefetch_factor" in {axis.knob.name for axis in begun.axes}, "a study of an earlier version goes on"
    pinned = resolve(SPACE, known, selection=["prefetch_factor"], pinned={"num_workers": 2})
    assert [axis.knob.name for axis in pinned.axes] == ["prefetch_factor"]
