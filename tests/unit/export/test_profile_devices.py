"""Which entry of a best.json belongs to which machine: two of them may have the same processor."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from support import made_up

from tuner.export.profile import choose, merged, profile_of, read, with_standing

CPU = replace(made_up.DEVICE, kind="cpu", name="AMD EPYC", uuid="AMD EPYC")
CARD = replace(made_up.DEVICE, kind="cuda", name="NVIDIA H100", uuid="GPU-1")


def profile(cores: int | None, device: Any = CPU, ranks: int = 1) -> dict[str, Any]:
    study = replace(made_up.STUDY, device=device, cores=cores, ranks=ranks)
    return profile_of(replace(made_up.RESULT, study=study))


def cores_of(content: bytes) -> list[int | None]:
    return [read_back.cores for read_back in read(content, "best.json")]


def test_a_machine_with_the_same_processor_and_other_cores_keeps_its_entry() -> None:
    both = merged(merged(None, profile(2), "best.json"), profile(64), "best.json")
    assert cores_of(both) == [2, 64]
    assert cores_of(merged(both, profile(2), "best.json")) == [64, 2]
    profiles = read(both, "best.json")
    assert choose(profiles, CPU, 2, "best.json").cores == 2
    assert choose(profiles, CPU, 64, "best.json").cores == 64
    elsewhere = merged(None, profile(64), "best.json")
    assert with_standing(elsewhere, made_up.RESULT, {**profile(2), "runs": 0}, "best.json") is not None


def test_a_card_is_itself_in_whatever_machine() -> None:
    assert cores_of(merged(merged(None, profile(2, CARD), "best.json"), profile(64, CARD), "best.json")) == [64]


def test_an_entry_of_an_earlier_version_is_read_and_gives_way() -> None:
    old = profile(None)
    del old["cores"]
    content = json.dumps({"schema": 1, "profiles": [old]}).encode()
    assert cores_of(content) == [None]
    assert choose(read(content, "best.json"), CPU, 8, "best.json").cores is None
    assert with_standing(content, made_up.RESULT, {**profile(2), "runs": 0}, "best.json") is None
    assert cores_of(merged(content, profile(2), "best.json")) == [2]


def test_numbers_of_ranks_stand_side_by_side_and_the_one_that_fits_is_chosen() -> None:
    both = merged(merged(None, profile(2), "best.json"), profile(2, ranks=2), "best.json")
    assert [each.ranks for each in read(both, "best.json")] == [1, 2]
    assert [each.ranks for each in read(merged(both, profile(2), "best.json"), "best.json")] == [2, 1]
    profiles = read(merged(both, profile(64, ranks=4), "best.json"), "best.json")
    assert [choose(profiles, CPU, 2, "best.json", ranks=ranks).ranks for ranks in (1, 2, 3, 4)] == [1, 2, 1, 4]
    alone = read(merged(None, profile(2, ranks=2), "best.json"), "best.json")
    assert choose(alone, CPU, 2, "best.json").ranks == 2, "the caller refuses it, and says why"


def test_a_proof_of_one_process_does_not_stand_for_several_ranks() -> None:
    of_one = merged(None, profile(2), "best.json")
    later = {**profile(2, ranks=2), "runs": 0}
    assert with_standing(of_one, made_up.RESULT, later, "best.json") == later


def test_a_proof_with_one_backend_of_keras_does_not_stand_for_another() -> None:
    def on_backend(name: str) -> dict[str, Any]:
        made = profile(2)
        return {**made, "knowledge": {**made["knowledge"], "backend": name}}

    proven = merged(None, on_backend("tensorflow"), "best.json")
    later = {**on_backend("jax"), "runs": 0}
    assert with_standing(proven, made_up.RESULT, later, "best.json") == later
    assert with_standing(proven, made_up.RESULT, {**on_backend("tensorflow"), "runs": 0}, "best.json") is None


def on(devices: int) -> dict[str, Any]:
    """A profile that was proven on so many devices of one process."""
    made = profile(2)
    return {**made, "knowledge": {**made["knowledge"], "devices": devices}}


def test_numbers_of_devices_in_one_process_stand_side_by_side_and_the_one_that_fits_is_chosen() -> None:
    both = merged(merged(None, on(1), "best.json"), on(8), "best.json")
    assert [each.devices for each in read(both, "best.json")] == [1, 8]
    assert [each.devices for each in read(merged(both, on(1), "best.json"), "best.json")] == [8, 1]
    profiles = read(both, "best.json")
    assert [choose(profiles, CPU, 2, "best.json", devices=devices).devices for devices in (1, 8)] == [1, 8]
    assert choose(read(merged(None, on(8), "best.json"), "best.json"), CPU, 2, "best.json").devices == 8


def test_a_profile_says_which_of_its_knobs_met_nothing_to_turn() -> None:
    entry = profile(2)
    vain = {"knob": "attention", "evidence": "not applicable"}
    told = {**entry, "knobs": [{**entry["knobs"][0]}, vain, "no report"]}
    assert [one.in_vain for one in read(merged(None, told, "best.json"), "best.json")] == [frozenset({"attention"})]
    assert [one.in_vain for one in read(merged(None, entry, "best.json"), "best.json")] == [frozenset()]
