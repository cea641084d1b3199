"""The same study is resumed; a different one is refused with every difference shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.ran import Ran

from tuner.child.watch import Watch
from tuner.cli.planning import check_resumable
from tuner.errors import ObjectiveError, StudyMismatchError
from tuner.knowledge import Knowledge
from tuner.model import Config, Device, Outcome, Script, Value
from tuner.objective import Objective
from tuner.runner.request import Limits
from tuner.space.choose import Spaces
from tuner.space.declare import Knob, SearchSpace
from tuner.space.registry import load_objective, load_space
from tuner.space.resolved import Axis, ResolvedSpace
from tuner.storage import codec
from tuner.study.identity import (
    check_identity,
    check_modules,
    hashes_of_modules,
    identity_of,
    objective_of,
    space_hash,
)
from tuner.study.plan import StudyPlan

WORKERS = Knob("num_workers", lambda known: [0, 2], "workers", ordered=True)
SPACE = SearchSpace("torch", "torch", (WORKERS,))
CARD = Device("cuda", 0, "NVIDIA H100", "GPU-1", 80 * 2**30)
PLAN = StudyPlan(
    name="train",
    script=Script("train.py", ("--lr", "0.1"), sha256="ab" * 32),
    device=CARD,
    folder=Path("autotune-train"),
    spaces=Spaces((SPACE,)),
    objective=Objective("throughput", "samples/s", True, lambda measurement: measurement.rate),
    pinned=Config(precision="bf16", compile=True),
    software={"torch": "2.13.0", "python": "3.11.7"},
    keras_backend="tensorflow",
)


def _stored(plan: StudyPlan) -> dict[str, Any]:
    stored: dict[str, Any] = codec.loads(codec.dumps(identity_of(plan)))
    return stored


def test_a_study_is_itself_after_being_stored() -> None:
    check_identity(_stored(PLAN), identity_of(PLAN), "autotune-train")


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: replace(plan, trials=7, budget_s=60.0, seed=3, limits=Limits(trial_timeout_s=9.0)),
        lambda plan: replace(plan, folder=Path("elsewhere"), cores=64, patience=None, finalists=2),
        lambda plan: replace(plan, device=replace(CARD, index=1, uuid="GPU-2")),
        lambda plan: replace(plan, pinned=Config(dict(reversed([*plan.pinned.items()])))),
        lambda plan: replace(plan, software=dict(reversed(plan.software.items()))),
    ],
    ids=["budget", "place and cores beside a card", "another card of the kind", "order of pins", "order of software"],
)
def test_what_no_figure_depends_on_may_change(change: Callable[[StudyPlan], StudyPlan]) -> None:
    check_identity(_stored(PLAN), identity_of(change(PLAN)), "autotune-train")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (lambda p: replace(p, script=replace(p.script, sha256="cd" * 9)), "script.sha256: abababababab → cdcdcdcdcdcd"),
        (lambda p: replace(p, script=replace(p.script, path="other.py")), "script.path: train.py → other.py"),
        (lambda p: replace(p, script=replace(p.script, module="pkg.train")), "script.module: (none) → pkg.train"),
        (lambda p: replace(p, script=replace(p.script, argv=())), "script.argv: --lr 0.1 → (none)"),
        (lambda p: replace(p, without=frozenset({Watch.LOADER})), "without: (absent) → ['loader']"),
        (lambda p: replace(p, keras_backend="jax"), "keras.backend: tensorflow → jax"),
        (lambda p: replace(p, selection=("compile",)), "space.selection: [] → ['compile']"),
        (
            lambda p: replace(p, pinned=Config(p.pinned, compile=1)),
            "space.pinned: {'compile': True, 'precision': 'bf16'} → {'compile': 1, 'precision': 'bf16'}",
        ),
        (
            lambda p: replace(p, objective=replace(p.objective, unit="steps/s")),
            "objective: throughput (samples/s) → throughput (steps/s)",
        ),
        (lambda p: replace(p, device=replace(CARD, kind="tpu")), "device.kind: cuda → tpu"),
        (lambda p: replace(p, device=replace(CARD, name="NVIDIA A100")), "device.name: NVIDIA H100 → NVIDIA A100"),
        (lambda p: replace(p, software={**p.software, "torch": "2.14"}), "software.torch: 2.13.0 → 2.14"),
        (lambda p: replace(p, software={"python": "3.11.7"}), "software.torch: 2.13.0 → (absent)"),
        (lambda p: replace(p, software={**p.software, "cuda": "13"}), "software.cuda: (absent) → 13"),
    ],
)
def test_what_figures_depend_on_is_shown(change: Callable[[StudyPlan], StudyPlan], difference: str) -> None:
    with pytest.raises(StudyMismatchError) as caught:
        check_identity(_stored(PLAN), identity_of(change(PLAN)), "autotune-train")
    first, *differences = caught.value.message.splitlines()
    assert "autotune-train" in first
    assert [line.strip() for line in differences] == [difference]
    assert "--new" in caught.value.hint


def declared(file: Path, score: str) -> StudyPlan:
    """The plan with the objective that the file declares then."""
    file.write_text(
        "from tuner.objective import Objective\n"
        f'OBJECTIVE = Objective("own", "samples/s", True, lambda measurement: {score})\n'
    )
    return replace(PLAN, objective=load_objective(str(file)))


def test_an_objective_whose_file_was_edited_is_another_one(tmp_path: Path) -> None:
    """Of the same name and unit: a resumed study held figures of the two against each other."""
    file, moved = tmp_path / "own.py", tmp_path / "elsewhere.py"
    stored = _stored(declared(file, "measurement.rate"))
    assert objective_of(stored, trusted=True).sha256
    check_identity(stored, identity_of(declared(file, "measurement.rate")), "autotune-train")
    check_identity(stored, identity_of(declared(moved, "measurement.rate")), "autotune-train")
    edited = declared(file, "measurement.low")
    with pytest.raises(StudyMismatchError, match=r"objective\.sha256: [0-9a-f]{12} → [0-9a-f]{12}$"):
        check_identity(stored, identity_of(edited), "autotune-train")
    with pytest.raises(ObjectiveError, match="was edited since the study began"):
        objective_of(stored, trusted=True)
    with pytest.raises(StudyMismatchError, match=r"\(absent\) → "):
        check_identity(_stored(PLAN), identity_of(edited), "autotune-train")


def test_a_study_of_an_earlier_version_says_nothing_of_its_objectives_file(tmp_path: Path) -> None:
    plan = declared(tmp_path / "own.py", "measurement.rate")
    stored = {name: value for name, value in _stored(plan).items() if name != "objective.sha256"}
    check_identity(stored, identity_of(plan), "autotune-train")
    assert objective_of(stored, trusted=True).name == "own"


def searching(file: Path, allowed: str) -> StudyPlan:
    """The plan with the search space that the file declares then."""
    file.write_text(
        "from tuner.space.declare import Knob, SearchSpace\n"
        'KNOBS = (Knob("num_workers", lambda known: [0, 2], "workers"),)\n'
        f'SPACE = SearchSpace("own", "torch", KNOBS, allowed=lambda complete, knowledge: {allowed})\n'
    )
    return replace(PLAN, spaces=Spaces((load_space(str(file)),)))


def test_a_space_whose_file_was_edited_is_another_one(tmp_path: Path) -> None:
    """Of the same names and values: what its functions allow stands nowhere else."""
    file, moved = tmp_path / "own.py", tmp_path / "elsewhere.py"
    stored = _stored(searching(file, "True"))
    check_identity(stored, identity_of(searching(moved, "True")), "autotune-train")
    edited = searching(file, "complete['num_workers'] == 0")
    with pytest.raises(StudyMismatchError, match=r"space\.sha256: [0-9a-f]{12} → [0-9a-f]{12}$"):
        check_identity(stored, identity_of(edited), "autotune-train")
    with pytest.raises(StudyMismatchError, match=r"space\.sha256: [0-9a-f]{12} → \(none\)$"):
        check_identity(stored, identity_of(PLAN), "autotune-train")
    with pytest.raises(StudyMismatchError, match=r"space\.sha256: \(none\) → [0-9a-f]{12}$"):
        check_identity(_stored(PLAN), identity_of(edited), "autotune-train")
    earlier = {name: value for name, value in _stored(PLAN).items() if name != "space.sha256"}
    check_identity(earlier, identity_of(edited), "autotune-train")  # ``check_space`` tells


def test_the_order_of_the_selection_is_no_difference() -> None:
    one, other = (identity_of(replace(PLAN, selection=names)) for names in (("a", "-b"), ("-b", "a")))
    assert one == other


def test_a_study_of_an_earlier_version_says_nothing_of_keras() -> None:
    stored = {name: value for name, value in _stored(PLAN).items() if name != "keras.backend"}
    check_identity(stored, identity_of(PLAN), "autotune-train")
    with pytest.raises(StudyMismatchError, match=r"torch: 2\.13\.0 → 2\.14"):
        check_identity(stored, identity_of(replace(PLAN, software={"torch": "2.14"})), "autotune-train")


LOADER, KERAS = (Watch.FILES, Watch.LOADER), (Watch.FILES, Watch.KERAS)


@pytest.mark.parametrize(
    ("known", "is_another"),
    [
        (Knowledge(framework="torch", watches=LOADER), False),
        (Knowledge(framework="torch", watches=LOADER, without=(Watch.KERAS,)), True),
        (Knowledge(framework="torch", watches=KERAS), True),
        (Knowledge(framework="keras", backend="tensorflow", watches=KERAS), True),
        (Knowledge(framework="keras", backend="torch", watches=KERAS), False),
    ],
    ids=["no Keras", "nobody looked", "its layers alone", "set so", "chosen by the script"],
)
def test_another_backend_is_another_study_where_the_script_takes_it(
    tmp_path: Path, known: Knowledge, is_another: bool
) -> None:
    """A shell's KERAS_BACKEND had a script be refused that has nothing to do with Keras."""

    def outcome(config: Config) -> Outcome:
        given = worlds.World().outcome(config)
        return replace(given, knowledge=replace(given.knowledge, **_said(known)))

    Ran(worlds.plan(tmp_path, trials=2, keras_backend="tensorflow"), outcome)
    now = worlds.plan(tmp_path, trials=2, keras_backend="jax")
    for resume in (lambda: check_resumable(now), lambda: Ran(now, outcome)):
        with pytest.raises(StudyMismatchError, match="backend: tensorflow → jax") if is_another else nullcontext():
            resume()


def _said(known: Knowledge) -> dict[str, Any]:
    return {name: getattr(known, name) for name in ("framework", "backend", "watches", "without")}


def test_a_cpu_with_other_cores_is_another_device() -> None:
    plan = replace(PLAN, device=replace(CARD, kind="cpu"), cores=2)
    with pytest.raises(StudyMismatchError, match=r"device\.cores: 2 → 8"):
        check_identity(_stored(plan), identity_of(replace(plan, cores=8)), "autotune-train")


def test_another_number_of_ranks_is_another_study() -> None:
    assert "ranks" not in identity_of(PLAN)
    with pytest.raises(StudyMismatchError, match=r"ranks: \(absent\) → 2"):
        check_identity(_stored(PLAN), identity_of(replace(PLAN, ranks=2)), "autotune-train")


def _resolved(values: Sequence[Value], *, ordered: bool = True, **pinned: Value) -> ResolvedSpace:
    axis = Axis(replace(WORKERS, ordered=ordered), tuple(values), 0)
    return ResolvedSpace(SPACE, (axis,), {}, Config(pinned), Knowledge(), 2)


def test_a_space_is_known_by_its_axes_and_pins() -> None:
    spaces = [
        _resolved([0, 1]), _resolved([0, 1, 2]), _resolved([1, 0]), _resolved([0, True]), _resolved([0, 1.0]),
        _resolved([0, 1], ordered=False), _resolved([0, 1], compile=True), _resolved([0, 1], compile=1),
    ]  # fmt: skip
    assert len({space_hash(space) for space in spaces}) == len(spaces)
    assert space_hash(_resolved([0, 1], a=1, b=2)) == space_hash(_resolved([0, 1], b=2, a=1))


def test_secrets_are_not_stored_and_another_one_is_no_other_study() -> None:
    def with_token(token: str) -> StudyPlan:
        return replace(PLAN, script=replace(PLAN.script, argv=("--token", token, "--lr", "0.1")))

    stored = _stored(with_token("s3cret"))
    assert "s3cret" not in str(stored)
    check_identity(stored, identity_of(with_token("renewed")), "autotune-train")
    of_an_earlier_version = {**stored, "script.argv": ["--token", "s3cret", "--lr", "0.1"]}
    check_identity(of_an_earlier_version, identity_of(with_token("renewed")), "autotune-train")
    with pytest.raises(StudyMismatchError) as raised:
        check_identity({**of_an_earlier_version, "seed": 1}, identity_of(PLAN), "autotune-train")
    assert "s3cret" not in raised.value.message


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("hf_token:abcd1234,lr:0.1", "hf_token:abcd1234,lr:0.5"), ("hf_token=abcd,lr=0.1", "hf_token=abcd,lr=0.5"),
        ("api_key: abcd, lr: 0.1", "api_key: abcd, lr: 0.5"),
    ],
)  # fmt: skip
def test_what_stands_beside_a_secret_is_compared(before: str, now: str) -> None:
    one, other = (replace(PLAN, script=replace(PLAN.script, argv=("--kwargs", text))) for text in (before, now))
    with pytest.raises(StudyMismatchError, match=r"script\.argv"):
        check_identity(_stored(one), identity_of(other), "autotune-train")


def test_a_study_whose_modules_were_edited_is_refused_by_their_names(tmp_path: Path) -> None:
    script, helper = tmp_path / "train.py", tmp_path / "parts" / "data.py"
    helper.parent.mkdir()
    helper.write_text("x = 1\n")
    known = hashes_of_modules(script, ["parts/data.py"])
    check_modules({**known, "../elsewhere.py": "0"}, script, "autotune-train")
    helper.write_text("x = 2\n")
    with pytest.raises(StudyMismatchError, match=r"parts/data\.py"):
        check_modules(known, script, "autotune-train")
    helper.unlink()
    with pytest.raises(StudyMismatchError, match=r"parts/data\.py"):
        check_modules(known, script, "autotune-train")


@pytest.mark.parametrize("name", ["../../../../dev/zero", "pipe.py", "\0.py", "data.txt"])
def test_what_is_no_source_of_a_module_is_not_read(tmp_path: Path, name: str) -> None:
    """The names come from a best.json, too, and reading some files never ends."""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "data.txt").write_text("x")
    assert hashes_of_modules(tmp_path / "train.py", [name]).get(name, "") == ""
