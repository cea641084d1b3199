"""Which arguments of a call its own statement gives new values: told by the bytecode and the source of its caller."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.rebound import seen

from tuner.child.jax.rebinding import CAUGHT, OTHER_STATEMENT, READ_ELSEWHERE, UNREADABLE, Rebinding, Rebindings

READ = READ_ELSEWHERE.format("a")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("a, b = step(a, x)", {0}),
        ("b, a = step(x, a)", {1}),
        ("a, b = step(a, b)", {0, 1}),
        ("[a, *b] = (step(a, log, step=b))", {0, "step"}),
        ("(a), log[0] = step(a, x)", {0}),
        ("a = step(log['x'] if x in () else x, a)", {1}),
        ("for _ in range(2):\n    a, b = step(\n        a,\n        x=len('é'),\n    ); c = a", {0}),
        ("with open('/dev/null'):\n    a, b = step(a, x)", {0}),
        ("try:\n    a, b = step(a, x)\nexcept KeyboardInterrupt:\n    print('stopped')\n    raise", {0}),
        ("try:\n    a, b = step(a, x)\nexcept KeyboardInterrupt:\n    sys.exit(1)\nfinally:\n    log[0] = b", {0}),
        ("def show(a):\n    return a\na, b = step(a, x)", {0}),
        ("a, b = step(a, x)\nprint([a for _ in range(2)], sum(len(a) for _ in range(2)))", {0}),
        ("def main(a):\n    b = 1\n    a, b = step(a, x)\n    print([a for _ in b])\nmain(a)", {0}),
        ("class Trainer:\n    def run(self, a):\n        a, self.b = step(a, x)\nTrainer().run(a)", {0}),
        ("def main():\n    def inner(a):\n        a, b = step(a, x)\n    inner([6])\nmain()", {0}),
    ],
)
def test_variables_that_get_new_values_by_the_statement(text: str, arguments: set[int | str], tmp_path: Path) -> None:
    found = seen(text, tmp_path)
    assert {*found.numbers, *found.names} == arguments and not found.why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("c, b = step(a, x)", OTHER_STATEMENT),  # to go back where it was no good
        ("step(a, x)", OTHER_STATEMENT),
        ("a, b = step(a, a)", OTHER_STATEMENT),
        ("a, b = step(a, a[0])", OTHER_STATEMENT),
        ("a, b = step(*[a, x])", OTHER_STATEMENT),
        ("a, b = step(a, **{})", OTHER_STATEMENT),
        ("a, b = step([a], x)", OTHER_STATEMENT),
        ("a, b = c = step(a, x)", OTHER_STATEMENT),
        ("log[str(a)], a = step(a, x)", OTHER_STATEMENT),
        ("a, b = step(a, x) or None", OTHER_STATEMENT),
        ("a, b = [step(a, x) for _ in range(2)]", OTHER_STATEMENT),
        ("log['a'], b = step(log, x)", OTHER_STATEMENT),
        ("class T:\n    a = 1\n    a, b = step(a, x)", OTHER_STATEMENT),
        ("a, b = step.__call__(a, x)", OTHER_STATEMENT),
        ("try:\n    a, b = step(a, x)\nexcept KeyboardInterrupt:\n    pass\nprint(a)", CAUGHT),
        ("try:\n    a, b = step(a, x)\nexcept KeyboardInterrupt:\n    print(a)\n    raise", CAUGHT),
        ("try:\n    a, b = step(a, x)\nfinally:\n    print(a)", CAUGHT),
        ("for _ in 'a':\n    try:\n        a, b = step(a, x)\n    finally:\n        break", CAUGHT),
        ("def save():\n    return a\na, b = step(a, x)", READ),
        ("save = lambda: a\na, b = step(a, x)", READ),
        ("class Saved:\n    def save(self):\n        return a\na, b = step(a, x)", READ),
        ("def main():\n    global a\n    a, b = step(a, x)\nmain()", READ),
        ("def main(a):\n    def save():\n        return a\n    a, b = step(a, x)\nmain(a)", READ),
        ("def main(a):\n    def inner():\n        nonlocal a\n        a, b = step(a, x)\n    inner()\nmain(a)", READ),
    ],
)
def test_variables_that_may_be_read_again(text: str, why: str, tmp_path: Path) -> None:
    found = seen(text, tmp_path)
    assert not found.holds_any and found.why == why


def test_one_of_two_variables_that_a_function_reads_stays(tmp_path: Path) -> None:
    assert seen("def save():\n    return a\na, b = step(a, b)", tmp_path).numbers == {1}


def test_a_file_that_was_edited_meanwhile_says_nothing(tmp_path: Path) -> None:
    text = "def main(a):\n    a, b = step(a, x)\nmain(a)\n"
    assert seen(text, tmp_path).numbers == {0}
    assert seen("a, b = step(a, x)", tmp_path, is_edited=True).why == UNREADABLE
    assert seen(text, tmp_path, is_edited=True).numbers == frozenset()


def test_code_without_a_file_says_nothing() -> None:
    rebindings, found = Rebindings(), list[Rebinding]()
    exec("a = step(1)", {"step": lambda value: found.append(rebindings.at(sys._getframe(1)))})
    assert found[0].why == UNREADABLE
