"""The space of a study is that of the framework that trains; what was asked for is held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import Ran, of

from tuner.cli import main
from tuner.errors import StudyMismatchError, UnknownKnobError, UntunableError, UsageError
from tuner.events import Noted, SpaceResolved
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome
from tuner.space.arguments import parse
from tuner.space.choose import Spaces
from tuner.space.declare import Knob, SearchSpace
from tuner.space.registry import AUTO, load_spaces
from tuner.storage.database import Repository

MADE_UP = replace(worlds.SPACE, framework="made-up")
TINY = SearchSpace(
    "tiny", "other", (
        Knob("lever", lambda known: [1, 2], "a lever", ordered=True, value_type=int, least=1),
        Knob("precision", lambda known: ["half"], "a word", value_type=str),
    ),
)  # fmt: skip
BOTH = Spaces((MADE_UP, TINY), forced=False)
SOURCE = """
    from tuner.space import Knob, SearchSpace
    SPACE = SearchSpace("tiny", "other", (Knob("lever", lambda known: [1, 2], "a lever", value_type=int),))
"""


def trained_with(framework: str) -> Callable[[Config], Outcome]:
    """A machine whose child says that the framework trains; the lever is worth a third."""

    def outcome_of(config: Config) -> Outcome:
        faster = config.get("lever") == 2 or config.get("workers") == 4
        knowledge = Knowledge(as_written={**worlds.WRITTEN, "lever": 1}, framework=framework)
        return replace(worlds.measured(400.0 if faster else 300.0), knowledge=knowledge)

    return outcome_of


@pytest.mark.parametrize(("framework", "name"), [("made-up", "made-up"), ("other", "tiny")])
def test_the_framework_that_trains_chooses(framework: str, name: str, tmp_path: Path) -> None:
    ran = Ran(worlds.plan(tmp_path, trials=4, spaces=BOTH), trained_with(framework))
    [resolved] = of(ran.events, SpaceResolved)
    assert ("lever" in resolved.values) == (name == "tiny")
    assert ran.result.space == name
    if name == "tiny":
        assert ran.result.winner is not None and ran.result.winner.config == {"lever": 2}


def test_a_space_that_was_chosen_is_the_studys_own(tmp_path: Path) -> None:
    def plan(spaces: Spaces) -> Ran:
        return Ran(worlds.plan(tmp_path, trials=2, spaces=spaces), trained_with("other"))

    done = plan(BOTH).result.trials
    assert plan(Spaces((TINY,))).result.trials == done, "named by the user, it is the same space"
    for spaces, shown in (
        (Spaces((MADE_UP,)), "name: tiny → made-up"),
        (Spaces((replace(TINY, knobs=(replace(TINY.knobs[0], tier=3),)),)), r"knobs: .*lever:1.* → .*lever:3"),
    ):
        with pytest.raises(StudyMismatchError, match=shown):
            plan(spaces)
    repository = Repository(f"sqlite:///{tmp_path / 'study.db'}")
    [record] = repository.studies()
    repository.close()
    assert record.state == "finished", "what is refused changes nothing"
    assert record.space["name"] == "tiny"


def test_without_a_space_for_it_the_framework_is_named(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path, spaces=BOTH)
    with pytest.raises(UntunableError, match="trains with jax, and no search space is installed for that") as none:
        Ran(plan, trained_with("jax"))
    assert "made-up (for made-up), tiny (for other)" in none.value.hint
    again: list[Config] = []
    with pytest.raises(UntunableError):
        Ran(plan, lambda config: again.append(config) or worlds.measured(1.0))  # type: ignore[func-returns-value]
    assert not again, "the baseline was measured before"
    forced = Spaces((TINY,)).chosen(Knowledge(framework="jax"), {}, ())
    assert forced == TINY, "one that is forced is taken as it is"


def test_of_several_spaces_for_a_framework_the_one_that_has_its_name_counts() -> None:
    theirs = replace(TINY, name="theirs")
    with pytest.raises(UntunableError, match=r"trains with other 1\.2, and several search spaces"):
        Spaces((TINY, theirs), forced=False).chosen(Knowledge(framework="other", framework_version="1.2"), {}, ())
    own = replace(TINY, name="other")
    assert Spaces((theirs, own), forced=False).chosen(Knowledge(framework="other"), {}, ()).name == "other"


def test_a_script_without_a_framework_gets_the_space_that_knows_what_it_asks_for() -> None:
    assert BOTH.chosen(Knowledge(as_written={"lever": 1}), {}, ()).name == "tiny"
    assert BOTH.chosen(Knowledge(as_written={"workers": 1, "batch_size": 8}), {}, ()).name == "made-up"


@pytest.mark.parametrize(("selection", "told"), [((), set()), (("precision", "lever"), {"precision"})])
def test_of_a_script_without_a_framework_only_what_it_asks_for_is_told(
    tmp_path: Path, selection: tuple[str, ...], told: set[str]
) -> None:
    """A summary named some 20 knobs of a framework that the script had nothing to do with as left out."""

    def outcome_of(config: Config) -> Outcome:
        return replace(worlds.measured(300.0), knowledge=Knowledge(as_written={"lever": 1}))

    ran = Ran(worlds.plan(tmp_path, trials=2, spaces=BOTH, selection=selection), outcome_of)
    [resolved] = of(ran.events, SpaceResolved)
    assert set(resolved.values) == {"lever"} and set(resolved.left_out) == told
    assert any("no framework is seen to train: only what" in note.text for note in of(ran.events, Noted))


@pytest.mark.parametrize(
    ("selection", "pinned", "argument"),
    [(["-lever"], {}, ""), ((), {"lever": 2}, ""), ((), {}, "--x={lever}"), ((), {}, "--x={lever=1}")],
    ids=["selected", "pinned", "bound", "bound with its value"],
)
def test_a_knob_of_another_framework_is_refused_once_that_is_known(
    selection: list[str], pinned: Config, argument: str
) -> None:
    placeholders = parse([argument] if argument else [])
    BOTH.check(placeholders, selection, pinned)
    asked = [*(name.strip("-") for name in selection), *pinned]
    BOTH.chosen(Knowledge(framework="other"), placeholders, asked)
    with pytest.raises(UnknownKnobError, match="lever is a knob of 'tiny', and the script trains with made-up") as told:
        BOTH.chosen(Knowledge(framework="made-up"), placeholders, asked)
    assert "the knobs of made-up are: batch_size" in told.value.hint


def test_a_bound_knob_with_values_of_its_own_suits_every_space() -> None:
    chosen = BOTH.chosen(Knowledge(framework="made-up"), parse(["--x={lever=1|2}"]), ())
    assert chosen.knob("lever").tier == 3


@pytest.mark.parametrize(
    ("selection", "pinned", "argument", "message", "hint"),
    [
        (["levre"], {}, "", "unknown knob 'levre'", "did you mean 'lever'?"),
        ((), {"nosuch": 1}, "", "unknown knob 'nosuch'", "made-up and tiny are: batch_size"),
        ((), {}, "--x={nosuch}", "{nosuch}", "{nosuch=1|2|4}"),
        (["lever", "workers"], {}, "", "no search space has all", "tiny: lever; made-up: workers"),
        ((), {"lever": 0}, "", "lever is at least 1", ""),
    ],
)
def test_what_no_space_takes_is_refused_before_anything_runs(
    selection: list[str], pinned: Config, argument: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as told:
        BOTH.check(parse([argument] if argument else []), selection, pinned)
    assert isinstance(told.value, UnknownKnobError) == (message != "lever is at least 1")
    assert message in told.value.message
    assert hint in told.value.hint


def test_a_value_that_one_space_takes_is_left_to_it() -> None:
    BOTH.check({}, (), {"precision": 16})  # the made-up one takes any, the tiny one words only


def test_the_command_line_knows_all_that_are_installed(
    install: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("tiny_space", SOURCE, search_spaces="tiny = tiny_space:SPACE")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert {space.name for space in load_spaces(AUTO)} >= {"tiny", "torch"}
    assert main(["study", "train.py", "--device", "cpu", "--knobs", "lever", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "tiny (if the script trains with other): lever" in said
    assert "torch (if the script trains with torch): num_workers" in said
    assert main(["study", "train.py", "--device", "cpu", "--space", "tiny", "--dry-run"]) == 0
    assert "search space    tiny: lever" in capsys.readouterr().out
    assert main(["study", "train.py", "--device", "cpu", "--knobs", "lever,num_workers"]) == 2
    assert "no search space has all the knobs" in capsys.readouterr().err


def test_a_slip_is_explained_by_every_space_that_has_the_knob() -> None:
    """A user of PyTorch was told what the threads of JAX are."""
    spaces = Spaces((TINY, replace(TINY, name="other", knobs=(replace(TINY.knobs[0], meaning="another lever"),))))
    with pytest.raises(UsageError, match=r"lever=1\.5: lever takes a whole number") as caught:
        spaces.check({}, (), Config(lever=1.5))
    assert caught.value.hint == "in tiny it is: a lever; in other it is: another lever"
    with pytest.raises(UsageError) as caught:
        Spaces((TINY, replace(TINY, name="other"))).check({}, (), Config(lever=1.5))
    assert caught.value.hint == "it is: a lever"


def test_a_knob_that_is_both_chosen_and_left_out_is_refused() -> None:
    """Nothing was searched then, and a whole study ran for it."""
    with pytest.raises(UsageError, match="lever is both chosen and left out"):
        BOTH.check({}, ("lever", "precision", "-lever"), Config())
    BOTH.check({}, ("precision", "-lever"), Config())


def test_a_knob_that_is_both_set_and_left_out_is_refused() -> None:
    """It was set, without a word on the minus."""
    with pytest.raises(UsageError, match="lever is both set and left out"):
        BOTH.check({}, ["-lever"], Config(lever=2))
    BOTH.check({}, ["-precision"], Config(lever=2))
