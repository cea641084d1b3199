"""Knobs in the script's arguments: what is written is what runs, and the baseline is the script as written."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tuner.errors import UsageError
from tuner.knowledge import typed_value
from tuner.model import Device, Value, same_value
from tuner.space.arguments import Placeholder, extend_space, parse, render
from tuner.space.declare import Knob, Known, SearchSpace

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
WORDS = st.text(st.characters(exclude_characters="{}|", exclude_categories=["Cs"]), min_size=1, max_size=6)
VALUES: st.SearchStrategy[Value] = (
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS
)
LITERALS = st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"]), max_size=6)


@given(st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_written_by_python_is_read_as_itself(value: Value) -> None:
    assert same_value(typed_value(str(value)), value)


@given(st.text(max_size=8))
def test_any_text_has_a_value_that_equals_itself(text: str) -> None:
    value = typed_value(text)
    assert same_value(value, typed_value(text)), "a NaN would not"
    assert isinstance(value, (bool, int, float)) or value == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("1", 1), ("-3", -3), ("1e-3", 0.001), (".5", 0.5), ("1.0", 1.0),
        ("nan", "nan"), ("-inf", "-inf"), ("1e999", "1e999"), ("2024_01", "2024_01"), (" 1", " 1"), ("bf16", "bf16"),
        ("0x10", "0x10"), ("", ""), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_a_value_has_the_type_that_it_looks_like(text: str, value: Value) -> None:
    assert same_value(typed_value(text), value)


@given(st.lists(LITERALS))
def test_arguments_without_braces_are_left_as_they_are(argv: list[str]) -> None:
    assert parse(argv) == {}
    assert render(argv, {"batch_size": 64}) == tuple(argv)


@given(NAMES, st.lists(WORDS, min_size=1, max_size=4), LITERALS, LITERALS, st.data())
def test_a_choice_is_rendered_as_it_was_written(
    knob: str, texts: list[str], before: str, after: str, data: st.DataObject
) -> None:
    argv = [f"{before}{{{knob}={'|'.join(texts)}}}{after}"]
    placeholder = parse(argv)[knob]
    assert placeholder.default is not None and same_value(placeholder.default, typed_value(texts[0]))
    assert placeholder.choices == (tuple(typed_value(text) for text in texts) if len(texts) > 1 else ())
    assert list(parse(argv)) == [knob]
    assert render(argv, {}) == (f"{before}{texts[0]}{after}",)
    chosen = data.draw(st.sampled_from(texts))
    (rendered,) = render(argv, {knob: typed_value(chosen)})
    # Texts of one value (1.0 and 1.00) are one choice: any of them will do.
    assert rendered in [f"{before}{t}{after}" for t in texts if same_value(typed_value(t), typed_value(chosen))]


@given(NAMES, VALUES, st.sampled_from(["--x={}", "--x {}", "-x={}", "x={}"]))
def test_a_value_that_was_not_written_is_rendered_so_that_it_is_read_back(knob: str, value: Value, form: str) -> None:
    assume(not isinstance(value, str) or same_value(typed_value(value), value))
    argv = form.format(f"{{{knob}}}").split(" ")
    (*_, last) = render(argv, {knob: value})
    assert same_value(typed_value(last.rpartition("x=")[2] if "=" in form else last), value)


@given(NAMES, st.lists(WORDS.filter(lambda word: not word.startswith("-")), max_size=3), st.booleans())
def test_the_baseline_runs_without_a_bare_placeholder(knob: str, others: list[str], apart: bool) -> None:
    option = ["--width", f"{{{knob}}}"] if apart else [f"--width={{{knob}}}"]
    for at in range(len(others) + 1):
        argv = [*others[:at], *option, *others[at:]]
        assert parse(argv) == {knob: Placeholder(knob)}
        assert render(argv, {}) == tuple(others)
        assert render(argv, {"another": 1}) == tuple(others)
        assert len(render(argv, {knob: 3})) == len(argv)


@given(NAMES, LITERALS, LITERALS)
def test_doubled_braces_stand_for_single_ones(name: str, before: str, after: str) -> None:
    argv = [f"{before}{{{{{name}}}}}{after}"]
    assert parse(argv) == {}
    assert render(argv, {name: 3}) == (f"{before}{{{name}}}{after}",)


@pytest.mark.parametrize("token", ['{"a": 1}', "{}", "{Width}", "{1}", "{a b}", "{a", "a}", "{{", "{a,b}"])
def test_other_braces_are_left_as_they_are(token: str) -> None:
    assert parse([token]) == {}
    assert render([token], {"a": 3}) == (token,)


def test_several_placeholders_share_a_token() -> None:
    argv = ["--shape={width=8|16}x{height=4}", "{{width}}"]
    assert parse(argv) == {"width": Placeholder("width", 8, (8, 16)), "height": Placeholder("height", 4)}
    assert render(argv, {"width": 16}) == ("--shape=16x4", "{width}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{width}"], "positional"),
        (["--flag=1", "{width}"], "positional"),
        (["--", "{width}"], "positional"),
        (["--a", "{width=3}", "{height}"], "positional"),
        (["--shape={width}x{height=3}"], "several placeholders"),
        (["--width={width=}"], "empty value"),
        (["--width={width=1||2}"], "empty value"),
        (["--a={width=1}", "--b={width=2}"], "twice"),
        (["--a={width=1}", "--b={width=true}"], "twice"),
        (["--a={width=1}", "--b={width}"], "twice"),
    ],
)
def test_what_can_not_be_run_is_refused_with_a_remedy(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(argv)
    assert caught.value.hint


SPACE = SearchSpace("torch", "torch", (Knob("batch_size", lambda known: [8, 16], "samples", ordered=True),))


def test_the_space_takes_the_arguments_choices_and_knobs() -> None:
    space = extend_space(SPACE, parse(["--b={batch_size=32|64}", "--width={width=8|16}", "--act={act=relu|gelu}"]))
    width, act, batch_size = space.knobs
    known = Known(Device("cpu", 0, "a CPU", "", 0), cores=2)
    assert [list(knob.choices(known)) for knob in (batch_size, width, act)] == [[32, 64], [8, 16], ["relu", "gelu"]]
    assert (batch_size.ordered, width.ordered, act.ordered) == (True, True, False)
    assert (batch_size.tier, width.tier) == (1, 3)
    assert extend_space(SPACE, parse(["--b", "{batch_size}"])).knobs == SPACE.knobs
    assert not extend_space(SPACE, parse(["{batch_size=8|auto}"])).knobs[0].ordered


def test_a_knob_of_ones_own_needs_choices() -> None:
    with pytest.raises(UsageError, match="no knob of 'torch'") as caught:
        extend_space(SPACE, parse(["--width={width=8}"]))
    assert "{{width}}" in caught.value.hint and "batch_size" in caught.value.hint
