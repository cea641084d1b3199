"""What code takes of a variable, by its instructions."""

from __future__ import annotations

import dis

import pytest

from tuner.child.taken import each_local, instructions_of, taken_by


class Tokens:
    """Adds to one of its attributes, and reads another, both beside a local."""

    def __init__(self) -> None:
        self.seen = list[str]()
        self.table = {"a": 1}

    def looked_up(self, words: list[str]) -> list[int]:
        """A batch."""
        self.seen.extend(words)
        return [self.table[word] for word in words]


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        ("LOAD_FAST_LOAD_FAST", ["LOAD_FAST", "LOAD_FAST"]),
        ("LOAD_FAST_BORROW_LOAD_FAST_BORROW", ["LOAD_FAST", "LOAD_FAST"]),
        ("STORE_FAST_LOAD_FAST", ["STORE_FAST", "LOAD_FAST"]),
    ],
)
def test_two_locals_in_one_instruction_are_two(operation: str, told: list[str]) -> None:
    """From Python 3.13 on: what was read of the second one was missed, or took all for read."""
    one = next(dis.get_instructions(compile("1", "", "eval")))
    pair = list(each_local(one._replace(opname=operation, argval=("x", "self"))))
    assert [each.opname for each in pair] == told and [each.argval for each in pair] == ["x", "self"]
    constant = one._replace(opname="LOAD_CONST", argval=(1, 2))
    assert list(each_local(constant)) == [constant]


def test_locals_are_named_one_by_one_in_every_version_of_python() -> None:
    told = instructions_of(Tokens.looked_up.__code__)
    assert not [each for each in told if isinstance(each.argval, tuple) and "FAST" in each.opname]


def test_of_an_object_its_method_takes_what_it_names() -> None:
    tokens = Tokens()
    assert taken_by(tokens.looked_up) == {"seen": tokens.seen, "table": tokens.table}  # type: ignore[arg-type]
