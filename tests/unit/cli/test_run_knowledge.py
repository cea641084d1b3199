"""What ``autotune run`` may still use of what the study learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import worlds

from tuner.cli.chosen_profile import knowledge_of
from tuner.errors import ProfileError, UsageError
from tuner.export.profile import Profile
from tuner.knowledge import Knowledge
from tuner.model import Config, Script, Verdict

SCRIPT = Script("train.py", ("--size={batch_size}", "--epochs", "3"), sha256="a" * 64)
KNOWLEDGE = Knowledge(placeholders=("batch_size",), training_loaders=("__main__.main~0123abcd#0",), unit="samples")
CONFIG = Config(batch_size=128, workers=2)
PROFILE = Profile(worlds.DEVICE, CONFIG, Verdict.IMPROVED, SCRIPT, {}, KNOWLEDGE, 2.0)


def test_the_same_script_and_arguments_use_all_of_it() -> None:
    assert knowledge_of(PROFILE, SCRIPT, "best.json") == KNOWLEDGE


def test_other_arguments_must_keep_the_place_of_a_bound_knob() -> None:
    moved = replace(SCRIPT, argv=("--epochs", "90", "--size", "{batch_size=64}"))
    assert knowledge_of(PROFILE, moved, "best.json") == KNOWLEDGE
    with pytest.raises(ProfileError, match="batch_size as an argument") as raised:
        knowledge_of(PROFILE, replace(SCRIPT, argv=("--epochs", "90")), "best.json")
    assert "{batch_size}" in raised.value.hint
    unturned = replace(PROFILE, config=Config(workers=2))
    assert knowledge_of(unturned, replace(SCRIPT, argv=()), "best.json").placeholders == ()


def test_a_knob_that_is_bound_now_is_not_applied_twice() -> None:
    bound = replace(SCRIPT, argv=(*SCRIPT.argv, "--workers={workers=0}"))
    assert knowledge_of(PROFILE, bound, "best.json").placeholders == ("batch_size", "workers")
    with pytest.raises(UsageError, match="positional"):
        knowledge_of(PROFILE, replace(SCRIPT, argv=(*SCRIPT.argv, "{workers}")), "best.json")


def test_the_loaders_of_a_script_that_has_changed_are_known_unless_it_is_by_their_lines() -> None:
    edited = replace(SCRIPT, sha256="b" * 64)
    assert knowledge_of(PROFILE, edited, "best.json") == KNOWLEDGE
    of_lines = replace(KNOWLEDGE, training_loaders=("train.py:7#0",))
    of_an_earlier_version = replace(PROFILE, knowledge=of_lines)
    assert knowledge_of(of_an_earlier_version, SCRIPT, "best.json") == of_lines
    assert knowledge_of(of_an_earlier_version, edited, "best.json").training_loaders == ()
