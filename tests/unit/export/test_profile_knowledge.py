"""What a best.json holds of the script: what an earlier version wrote is read, and what can't be read is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import made_up

from tuner.errors import ProfileError
from tuner.export.profile import profile_of, read
from tuner.knowledge import Knowledge


def _content(knowledge: Any) -> bytes:
    profile = {**profile_of(made_up.RESULT), "knowledge": knowledge}
    return json.dumps({"schema": 1, "profiles": [profile]}).encode()


def test_what_is_known_of_the_script_comes_back() -> None:
    written = json.loads(json.dumps(profile_of(made_up.RESULT)))["knowledge"]
    (profile,) = read(_content(written), "best.json")
    assert profile.knowledge == made_up.RESULT.knowledge


def test_what_an_earlier_version_wrote_is_read() -> None:
    old = {"as_written": {"batch_size": None, "sizes": [1, 2]}, "dataset_len": None, "plan": {"of": "another time"}}
    (profile,) = read(_content(old), "best.json")
    assert profile.knowledge == Knowledge(as_written={"sizes": "[1, 2]"})


@pytest.mark.parametrize(
    ("knowledge", "what"),
    [
        (["batch_size"], r"knowledge is \['batch_size'\], not an object"),
        ({"training_loaders": "train.py:7#0"}, "knowledge.training_loaders is 'train.py:7#0', not a list"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(knowledge: object, what: str) -> None:
    with pytest.raises(ProfileError, match=rf"^best\.json: profiles\[0\] .*{what}"):
        read(_content(knowledge), "best.json")
