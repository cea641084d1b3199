"""The command line over study.toml over the defaults; a bad value names the option, or the file and its key."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.analysis.accuracy import AccuracyLimits
from tuner.child.watch import Watch
from tuner.cli import build_parser
from tuner.cli.settings import Settings, gather
from tuner.errors import ScriptNotFoundError, UsageError
from tuner.model import BASELINE, Config


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one script."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def declare(here: Path) -> Callable[..., Path]:
    """Writes a study.toml with one [study] table."""

    def write(text: str, folder: str = ".", *, whole: bool = False) -> Path:
        (here / folder).mkdir(exist_ok=True)
        path = here / folder / "study.toml"
        path.write_text(text if whole else f"[study]\n{text}\n", encoding="utf-8")
        return path

    return write


def _gather(*command: str, script_args: list[str] | None = None) -> Settings:
    """The settings of ``autotune study`` with that command line; the verb itself takes off what is behind ``--``."""
    parsed = build_parser().parse_args(["study", *command])
    parsed.script_args = script_args
    return gather(parsed)


def test_without_a_word_the_defaults_hold() -> None:
    assert _gather("train.py") == Settings(
        script="train.py", module="", args=(), device="auto", trials=30, budget_s=1800.0, trial_timeout_s=120.0,
        folder="", knobs=(), pinned=BASELINE, max_memory="0.9", space="auto", objective="throughput", seed=0,
        effective_batch="both", source=None, accuracy=AccuracyLimits(), planned_samples=None, probe=True,
    )  # fmt: skip


EVERY_KEY = """
script = "train.py"
args = ["--epochs", 3, "--lr", 0.1]
device = "cpu"
trials = 7
budget = "1h30m"
trial_timeout = 45
study = "out"
knobs = ["batch_size", "-compile"]
set = { num_workers = 4, pin_memory = true, precision = "bf16", lr = 0.5 }
max_memory = 0.5
space = "spaces/mine.py"
objective = "latency"
seed = 9
effective_batch = "free"
max_loss_increase = 0.02
planned_samples = 1000
probe = false
without = ["loader", "tf.data"]
"""


def test_a_file_says_everything(here: Path, declare: Callable[..., Path]) -> None:
    path = declare(EVERY_KEY, "job")
    expected = Settings(
        script="job/train.py", module="", args=("--epochs", "3", "--lr", "0.1"), device="cpu", trials=7,
        budget_s=5400.0, trial_timeout_s=45.0, folder="job/out", knobs=("batch_size", "-compile"),
        pinned=Config(num_workers=4, pin_memory=True, precision="bf16", lr=0.5), max_memory="0.5",
        space="job/spaces/mine.py", objective="latency", seed=9, effective_batch="free",
        source=path.relative_to(here), accuracy=AccuracyLimits(max_loss_increase=0.02), planned_samples=1000,
        probe=False, loads=(Path("job/spaces/mine.py"),), without=frozenset({Watch.LOADER, Watch.TF_DATA}),
    )  # fmt: skip
    assert _gather("job") == expected
    shutil.copy("train.py", "job/train.py")
    assert _gather("job/train.py") == expected


def test_a_file_here_is_taken_when_nothing_is_given(declare: Callable[..., Path]) -> None:
    declare('script = "train.py"\ntrials = 5')
    settings = _gather()
    assert (settings.script, settings.trials, settings.source) == ("train.py", 5, Path("study.toml"))
    assert _gather(".").trials == 5


def test_the_command_line_overrides_the_file_and_pins_are_joined(declare: Callable[..., Path]) -> None:
    declare(EVERY_KEY)
    settings = _gather(
        "train.py", "--device", "cuda:1", "--trials", "3", "--budget", "90s", "--trial-timeout", "1m", "--study",
        "elsewhere", "--knobs", "threads,-precision", "--set", "num_workers=2", "--set", "channels_last=true",
        "--max-memory", "20GiB", "--space", "keras", "--objective", "./mine.py", "--seed", "4",
        "--effective-batch", "keep", "--max-loss-increase", "off", "--planned-samples", "2000",
        "--without", "files, losses",
        script_args=["--epochs", "1"],
    )  # fmt: skip
    assert settings == Settings(
        script="train.py", module="", args=("--epochs", "1"), device="cuda:1", trials=3, budget_s=90.0,
        trial_timeout_s=60.0, folder="elsewhere", knobs=("threads", "-precision"),
        pinned=Config(num_workers=2, pin_memory=True, precision="bf16", lr=0.5, channels_last=True),
        max_memory="20GiB", space="keras", objective="./mine.py", seed=4,
        effective_batch="keep", source=Path("study.toml"), accuracy=AccuracyLimits(max_loss_increase=None),
        planned_samples=2000, probe=False, without=frozenset({Watch.FILES, Watch.LOSSES}),
    )  # fmt: skip
    assert not _gather("train.py", "--no-probe").probe
    alone = _gather("train.py", "--max-loss-increase", "off", "--min-sample-efficiency", "95%").accuracy
    assert alone.any and alone.least_efficiency == 0.95, "what was asked for holds though losses are left alone"
    assert _gather("train.py", script_args=[]).args == (), "nothing behind -- is nothing, too"


@pytest.mark.parametrize(
    ("text", "given", "speaks"),
    [
        ('script = "train.py"', ["train.py"], True),
        ('script = "./sub/../train.py"', ["train.py"], True),
        ("", ["train.py"], True),
        ('script = "other.py"', ["train.py"], False),
        ('module = "pkg.train"', ["train.py"], False),
        ('module = "pkg.train"', ["--module", "pkg.train"], True),
        ("", ["--module", "pkg.train"], True),
        ('module = "pkg.other"', ["--module", "pkg.train"], False),
        ('script = "train.py"', ["--module", "pkg.train"], False),
    ],
)
def test_a_file_speaks_of_its_own_script_only(
    declare: Callable[..., Path], text: str, given: list[str], speaks: bool
) -> None:
    declare(f"{text}\ntrials = 5")
    settings = _gather(*given)
    assert settings.trials == (5 if speaks else 30)
    assert (settings.source is not None) == speaks
    assert (settings.script, settings.module) == ("", "pkg.train") if "--module" in given else ("train.py", "")


def test_a_file_may_name_a_module(declare: Callable[..., Path]) -> None:
    declare('module = "pkg.train"')
    assert (_gather().module, _gather().script) == ("pkg.train", "")


@pytest.mark.parametrize("given", [[], ["."]])
def test_a_file_that_names_no_script_is_told(declare: Callable[..., Path], given: list[str]) -> None:
    declare("trials = 5")
    with pytest.raises(UsageError, match=r"study\.toml names no script"):
        _gather(*given)


def test_nothing_to_tune_is_told(here: Path) -> None:
    with pytest.raises(UsageError, match="no script given"):
        _gather()
    (here / "empty").mkdir()
    with pytest.raises(ScriptNotFoundError, match=r"there is no empty/study\.toml"):
        _gather("empty")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--trials", "0"), ("--trials", "-1"), ("--trials", "many"), ("--trials", "1.5"), ("--trials", ""),
        ("--seed", "-1"), ("--seed", "x"), ("--budget", "0"), ("--budget", "1h30"), ("--budget", "inf"),
        ("--budget", "-5"), ("--trial-timeout", "soon"), ("--trial-timeout", ""), ("--device", ""), ("--study", ""),
        ("--module", ""), ("--space", ""), ("--objective", ""), ("--knobs", ""), ("--knobs", "a,,b"), ("--knobs", "-"),
        ("--set", "num_workers"), ("--set", "=4"), ("--set", "num_workers="), ("--max-memory", "20GX"),
        ("--max-memory", "0"), ("--max-memory", "120%"), ("--max-memory", ""), ("--max-memory", "-1GiB"),
        ("--effective-batch", "half"), ("--planned-samples", "0"), ("--screen-samples", "x"),
        ("--max-loss-increase", "much"), ("--max-metric-drop", "accuracy"), ("--max-metric-drop", "accuracy=some"),
        ("--max-metric-rise", "loss"), ("--max-metric-rise", "loss=some"), ("--metric", "accuracy=(["),
    ],
)  # fmt: skip
def test_a_bad_value_names_its_option(option: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        _gather("train.py", f"{option}={value}")
    assert caught.value.message.startswith(f"{option}: ")


def test_limits_of_accuracy_are_read(declare: Callable[..., Path]) -> None:
    declare('max_loss_increase = false\nmax_metric_drop = { accuracy = "0.5%", f1 = 0.01 }\nscreen_samples = 100')
    limits = _gather("train.py").accuracy
    assert (limits.max_loss_increase, limits.max_metric_drop) == (None, {"accuracy": 0.005, "f1": 0.01})
    assert limits.samples == 100
    options = ("--max-loss-increase=2%", "--max-metric-drop=f1=2%", "--metric=f1=f1 ([0-9.]+)")
    given = _gather("train.py", *options).accuracy
    assert (given.max_loss_increase, given.max_metric_drop) == (0.02, {"accuracy": 0.005, "f1": 0.02})
    assert given.patterns == {"f1": "f1 ([0-9.]+)"}


def test_metrics_have_the_names_that_loggers_give_them(declare: Callable[..., Path]) -> None:
    declare('max_metric_rise = { "Loss/val" = "2%" }')
    drops = ("--max-metric-drop=Accuracy/val=0.5%", "--max-metric-drop=precision@k=5=1%")
    limits = _gather("train.py", *drops, "--max-metric-rise=wer=0.01").accuracy
    assert limits.max_metric_drop == {"Accuracy/val": 0.005, "precision@k=5": 0.01}
    assert limits.max_metric_rise == {"Loss/val": 0.02, "wer": 0.01}
    assert limits.metrics == ("Accuracy/val", "precision@k=5", "Loss/val", "wer")


def test_a_pattern_is_taken_as_it_stands(declare: Callable[..., Path]) -> None:
    declare("")
    for pattern in ("1e3", "true", "acc=([0-9.]+)"):
        limits = _gather("train.py", "--max-metric-drop=a=1%", f"--metric=a={pattern}").accuracy
        assert limits.patterns == {"a": pattern}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--max-metric-drop=f1=1%", "--max-metric-rise=f1=1%"), "'f1' is limited both ways"),
        (("--metric=f1=f1 (.*)",), "--metric: no limit is set for 'f1'"),
        (("--metric=f1=f1 (.*)", "--max-metric-drop=F1=1%"), "--metric: no limit is set for 'f1'"),
    ],
)
def test_metrics_without_a_sense_are_refused(options: tuple[str, ...], said: str, declare: Callable[..., Path]) -> None:
    declare("")
    with pytest.raises(UsageError, match=said):
        _gather("train.py", *options)


def test_the_smallest_values_are_taken(declare: Callable[..., Path]) -> None:
    settings = _gather("train.py", "--trials=1", "--seed=0", "--budget=1ms", "--max-memory=1")
    assert (settings.trials, settings.seed, settings.budget_s, settings.max_memory) == (1, 0, 0.001, "1")
    settings = _gather("train.py", "--planned-samples=1e6", f"--seed={2**60 + 1}")
    assert (settings.planned_samples, settings.seed) == (1_000_000, 2**60 + 1)
    declare("planned_samples = 1000")
    assert _gather("train.py").planned_samples == 1000
    assert _gather("train.py", "--planned-samples=off").planned_samples is None, "the command line wins"
    for off in ('"off"', "false"):
        declare(f"planned_samples = {off}")
        assert _gather("train.py").planned_samples is None
    declare("trials = 1\nseed = 0\nmax_memory = 1")
    settings = _gather("train.py")
    assert (settings.trials, settings.seed, settings.max_memory) == (1, 0, "1")


def test_an_empty_script_is_told_by_its_name_in_the_usage() -> None:
    with pytest.raises(UsageError, match="SCRIPT: expected a string that is not empty"):
        _gather("")


@pytest.mark.parametrize(
    ("key", "example"),
    [("set", "num_workers = 4"), ("max_metric_drop", 'accuracy = "0.5%"'), ("metric", "accuracy = 'accuracy (")],
)
def test_a_table_is_asked_for_by_what_stands_in_it(declare: Callable[..., Path], key: str, example: str) -> None:
    """Metrics were asked for as "a table of knob = value", and an empty name was taken for one."""
    for value in ('"accuracy=1%"', '{ "" = "1%" }'):
        declare(f"{key} = {value}")
        with pytest.raises(UsageError) as caught:
            _gather("train.py")
        assert f"{{ {example}" in caught.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trials", "0"), ("trials", "true"), ("trials", "1.5"), ("trials", "[3]"), ("seed", "-1"), ("seed", '"x"'),
        ("budget", '"soon"'), ("budget", "0"), ("budget", "true"), ("budget", "inf"), ("budget", "1979-05-27"),
        ("trial_timeout", "[]"), ("script", "3"), ("script", '""'), ("module", "true"), ("device", "0"),
        ("study", "[]"), ("space", "1"), ("objective", "{}"), ("args", '"--lr 0.1"'), ("args", "[[1]]"),
        ("args", "[1979-05-27]"), ("knobs", "3"), ("knobs", "[1]"), ("knobs", '["-"]'), ("set", "[]"),
        ("set", "{ a = [1] }"), ("max_memory", "true"), ("max_memory", "[]"), ("max_memory", '"20GX"'),
        ("max_memory", "-1"), ("max_memory", "nan"), ("effective_batch", "true"), ("effective_batch", '"half"'),
        ("planned_samples", "0"), ("screen_samples", "1.5"), ("max_loss_increase", "true"), ("max_metric_drop", "1"),
        ("max_metric_drop", "{ accuracy = true }"), ("metric", '{ accuracy = "([" }'),
        ("study", r'"a\u0000b"'), ("args", r'["a\u0000b"]'), ("set", r'{ width = "a\u0000b" }'),
    ],
)  # fmt: skip
def test_a_bad_value_names_the_file_and_its_key(declare: Callable[..., Path], key: str, value: str) -> None:
    declare(f"{key} = {value}")
    with pytest.raises(UsageError) as caught:
        _gather("train.py")
    assert caught.value.message.startswith(f"study.toml: {key} = ")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[study]\ntrails = 3", "unknown key 'trails'", "'trials'"),
        ("[study]\nmax-memory = 0.5", "unknown key 'max-memory'", "'max_memory'"),
        ("[study]\nxyzzy = 3", "unknown key 'xyzzy'", "the keys are: script"),
        ("trials = 3", "unknown key 'trials'", "[study] table"),
        ("study = 3", "unknown key 'study'", "[study] table"),
        ("[study]\n[other]", "unknown key 'other'", "[study] table"),
        ("[study", "can't read study.toml", ""),
        ("[study]\nscript = 'a'\nscript = 'b'", "can't read study.toml", ""),
    ],
)
def test_a_file_that_can_not_be_taken_is_told(
    declare: Callable[..., Path], text: str, message: str, hint: str
) -> None:
    declare(text, whole=True)
    with pytest.raises(UsageError) as caught:
        _gather("train.py")
    assert "study.toml" in caught.value.message and message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_that_is_no_text_is_told(here: Path) -> None:
    (here / "study.toml").write_bytes(b"\xff\xfe[study]")
    with pytest.raises(UsageError, match=r"can't read study\.toml"):
        _gather("train.py")


def test_a_file_may_name_places_outside_its_folder(declare: Callable[..., Path]) -> None:
    declare('script = "../train.py"\nspace = "torch"\nobjective = "../o.py"\nstudy = "/var/studies"', "job")
    settings = _gather("job")
    assert settings.script == "train.py"
    assert (settings.space, settings.objective, settings.folder) == ("torch", "o.py", "/var/studies")


def test_the_home_folder_may_be_written_as_in_a_shell(
    declare: Callable[..., Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell doesn't expand it here, and a study made a folder ``~``, which nobody dares to remove."""
    monkeypatch.setenv("HOME", str(here))
    declare('script = "~/train.py"\nstudy = "~/studies/mine"\nspace = "~/space.py"\nobjective = "~/o.py"', "job")
    settings = _gather("job")
    assert (settings.script, settings.folder) == (f"{here}/train.py", f"{here}/studies/mine")
    assert (settings.space, settings.objective) == (f"{here}/space.py", f"{here}/o.py")
    declare('script = "train.py"\nstudy = "~mine"')
    assert _gather("train.py").folder == "~mine", "a name like any other"


def test_what_is_named_twice_counts_once() -> None:
    """As another selection it was another study's."""
    assert _gather("train.py", "--knobs", "compile,-precision, compile").knobs == ("compile", "-precision")
    assert _gather("train.py", "--set", "lr=1", "--set", "lr=1").pinned == {"lr": 1}
    for first, second in (("1", "2"), ("1", "1.0"), ("true", "1")):
        with pytest.raises(UsageError, match="lr is given twice, and otherwise: "):
            _gather("train.py", "--set", f"lr={first}", "--set", f"lr={second}")
