"""What ``autotune run`` says of the devices that the script sees."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

import pytest
from support import worlds

from tuner.cli import run
from tuner.cli.chosen_profile import script_of
from tuner.devices.cpu import cpu_device
from tuner.errors import ProfileError, UntrustedError
from tuner.export.profile import Profile
from tuner.export.tier3 import Tier3
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Device, Script, Verdict
from tuner.space.declare import Known
from tuner.space.registry import AUTO, load_spaces

CARDS = [Device("cuda", number, "NVIDIA H100", f"GPU-{number}", 80 * 2**30, f"cuda:{number}") for number in range(8)]
PROFILE = Profile(worlds.DEVICE, Config(batch_size=8), Verdict.IMPROVED, Script("a.py", ()), {}, Knowledge(), 2.0)


@pytest.mark.parametrize(
    ("here", "device", "shown", "says"),
    [
        ([*CARDS, cpu_device()], CARDS[0], False, ["sees all 8 cuda devices, and the config was proven on one"]),
        ([*CARDS, cpu_device()], CARDS[1], True, ["sees cuda:1 alone, of 8, as --device asks"]),
        ([*CARDS, cpu_device()], cpu_device(), True, ["sees none of 8 accelerators, as --device asks"]),
        ([CARDS[0], cpu_device()], CARDS[0], False, []),
        ([CARDS[0], cpu_device()], CARDS[0], True, []),
        ([cpu_device()], cpu_device(), True, []),
    ],
)
def test_devices_are_never_hidden_without_a_word(
    monkeypatch: pytest.MonkeyPatch, here: list[Device], device: Device, shown: bool, says: list[str]
) -> None:
    monkeypatch.setattr(run, "devices", lambda: here)
    said = run._remarks(PROFILE, PROFILE.knowledge, device, shown=shown)
    assert len(said) == len(says)
    assert all(text in line for text, line in zip(says, said, strict=True))


def test_a_profile_of_an_earlier_version_is_told_where_its_lines_mean_others() -> None:
    old = replace(PROFILE, knowledge=Knowledge(training_loaders=("train.py:7#0",)))
    [said] = run._remarks(old, Knowledge(), cpu_device(), shown=False)
    assert "of an earlier version" in said
    assert run._remarks(old, old.knowledge, cpu_device(), shown=False) == []


@pytest.mark.parametrize(
    ("verdict", "told"), [(Verdict.IMPROVED, "--tier 3 applies larger batches"), (Verdict.KEEP_BASELINE, "faster$")]
)
def test_a_larger_batch_is_told_where_nothing_else_was_proven(verdict: Verdict, told: str) -> None:
    """That nothing was proven faster was said where a larger batch was."""
    larger = Tier3(Config(batch_size=32), verdict, 1.5)
    profile = replace(PROFILE, verdict=Verdict.KEEP_BASELINE, config=BASELINE, tier3=larger)
    assert re.search(told, run._says(profile, 2))


@pytest.mark.parametrize(("argv", "named"), [((), "a.py;"), (("--lr", "1"), "a.py -- --lr 1;")])
def test_what_a_file_would_choose_is_named_as_it_is_to_be_given(argv: tuple[str, ...], named: str) -> None:
    """Without arguments it was "a.py --"."""
    chosen = replace(PROFILE, script=Script("a.py", argv))
    bare = argparse.Namespace(script=None, module=None, script_args=None, trust=False)
    with pytest.raises(UntrustedError) as refused:
        script_of(bare, chosen, "best.json", "run")
    assert refused.value.message.endswith(named.rstrip(";")) and named in refused.value.hint


@pytest.mark.parametrize(("here", "refused"), [("2", True), ("4", False)])
def test_ranks_on_several_hosts_take_one_config(monkeypatch: pytest.MonkeyPatch, here: str, refused: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    chosen, other = replace(PROFILE, ranks=4), replace(PROFILE, ranks=4, config=Config(batch_size=16), cores=64)
    run._check_hosts(chosen, [chosen, replace(other, ranks=1)], "best.json")
    if refused:
        with pytest.raises(ProfileError, match="the ranks are on several hosts"):
            run._check_hosts(chosen, [chosen, other], "best.json")
    else:
        run._check_hosts(chosen, [chosen, other], "best.json")


@pytest.mark.parametrize(
    ("ranks", "here", "says"),
    [
        (1, "", []),
        (2, "", ["threads is 4, more than the 2 cores that each rank may use"]),
        (4, "2", ["threads is 4, more than the 2 cores that each rank may use"]),
        (4, "1", []),
    ],
)
def test_threads_beyond_what_each_rank_has_are_told(
    monkeypatch: pytest.MonkeyPatch, ranks: int, here: str, says: list[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    known = Known(worlds.DEVICE, 4 // run._ranks_here(), knowledge=PROFILE.knowledge)
    threads = replace(PROFILE, config=Config(threads=4), cores=4, edited=False)
    assert run._beyond_cores(threads, known, load_spaces(AUTO)) == says


@pytest.mark.parametrize(
    ("proven", "world", "says"),
    [
        (2, "2", ""), (1, "", ""), (1, "4", ""),
        (2, "", "was proven in 2 ranks, and this is one process"),
        (2, "4", "was proven in 2 ranks, and this is one of 4"),
    ],
)  # fmt: skip
def test_a_profile_of_several_ranks_is_for_as_many(
    monkeypatch: pytest.MonkeyPatch, proven: int, world: str, says: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", world or "1")
    profile = replace(PROFILE, ranks=proven)
    if not says:
        run._check_ranks(profile, "best.json", 2)
        return
    with pytest.raises(ProfileError, match=says) as caught:
        run._check_ranks(profile, "my best.json", 3)
    again = "torchrun --nproc-per-node 2 --no-python autotune run --config 'my best.json' --tier 3 "
    assert again in caught.value.hint and "--any-ranks" in caught.value.hint
    with pytest.raises(ProfileError) as caught:
        run._check_ranks(profile, "best.json", 2)
    assert "--config best.json ...;" in caught.value.hint


@pytest.mark.parametrize(
    ("proven", "says"), [(1, "proven in one process"), (2, ""), (3, "in 3 ranks, and applied in 2")]
)
def test_the_number_of_ranks_is_told_where_it_is_another(
    monkeypatch: pytest.MonkeyPatch, proven: int, says: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = run._remarks(replace(PROFILE, ranks=proven), PROFILE.knowledge, cpu_device(), shown=False)
    assert len(said) == bool(says)
    assert not says or says in said[0]


@pytest.mark.parametrize(
    ("here", "says"), [("", []), ("4", []), ("2", ["on one host, and applied in 2 of them on this one"])]
)
def test_ranks_on_several_hosts_are_told_of(monkeypatch: pytest.MonkeyPatch, here: str, says: list[str]) -> None:
    """The exchange between hosts isn't what was measured, nor are the cores that each rank has."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    said = run._remarks(replace(PROFILE, ranks=4), PROFILE.knowledge, cpu_device(), shown=False)
    assert len(said) == len(says) and all(text in line for text, line in zip(says, said, strict=True))
