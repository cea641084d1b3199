"""What autotune, and what each alternative to it, answers for one script in the same minutes.

Those that need an edited script have theirs in tests/assets/side_by_side, by the name of the script's folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from side_by_side_table import OURS, OURS_TIER_3

from tuner.child.devices.cpu import CpuDevice
from tuner.devices.present import kind_of
from tuner.errors import AutotuneError, UsageError
from tuner.export import PROFILE
from tuner.export import profile as profiles
from tuner.formatting import gain_text
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Device, OutcomeKind, Phase, Value, Verdict, same_value
from tuner.storage.studies import open_study

ROOT = Path(__file__).resolve().parents[2]
EDITED = ROOT / "tests" / "assets" / "side_by_side"
STUDY, BATCH_SIZE = "study", "batch_size"
GRACE_S = 5.0
"""Between the signal to end and the one that can't be refused."""
OURS_MOST = 2.0
"""Times the minutes after which a study of ours is ended: it keeps its time by itself, and what it took is told."""
LATE_S = 15.0
"""What an alternative has beyond its minutes, to start and to end by itself."""
ANSWER = "answer: "
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Task:
    """One script, and the minutes that everybody has for it. ``given`` is as on the command line, ``folder`` keeps what
    comes of it; ``knowledge`` is what a run of the script as written showed. ``arguments``: the values that the
    script's own arguments are bound to, beside the first.
    """

    given: str
    path: Path
    folder: Path
    minutes: float
    knowledge: Knowledge
    device: Device
    cores: int
    max_host_bytes: int | None = None
    arguments: Mapping[str, Sequence[Value]] | None = None

    @property
    def name(self) -> str:
        """Of the edited variants: the name of the script's folder."""
        return self.path.resolve().parent.name


@dataclass(frozen=True)
class Answer:
    """What was answered: a config of autotune's own space, empty for the script as written.

    ``missing``: why this alternative has no answer for the script at all, which is no failure of it; else "".
    ``said`` is what people should know of it.
    """

    alternative: str
    config: Config = BASELINE
    seconds: float = 0.0
    attempts: int = 0
    failures: int = 0
    said: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Ran:
    """A command that had a time limit: what it printed, and how it ended."""

    output: str
    seconds: float
    status: int | None
    """None where it was ended since its time was up."""


Alternative = Callable[[Task], list[Answer]]


def run_for(
    command: Sequence[str], seconds: float, log: Path, *, environment: Mapping[str, str] = NOTHING,
    max_bytes: int | None = None, cwd: Path | None = None,
) -> Ran:
    """Runs the command in a process group of its own, at most so long; nothing of the group is left afterwards.

    What it prints is kept in ``log``. ``max_bytes``: of the data of each of its processes, beyond which no memory is
    given, as on a machine that has no more.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd,
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
        try:
            if max_bytes is not None:  # long before it or anything that it starts has taken as much
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (max_bytes, max_bytes))
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            took_s = time.monotonic() - started
            _end_group(process)
    return Ran(log.read_text(encoding="utf-8", errors="replace"), took_s, status)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def read_answer(name: str, ran: Ran, knowledge: Knowledge) -> Answer:
    """The last answer that it printed; the script as written where there is none."""
    lines = [line for line in ran.output.splitlines() if line.startswith(ANSWER)]
    ended = "its time was up" if ran.status is None else f"it ended with status {ran.status}" if ran.status else ""
    if not lines:
        said = f"no answer: {ended or 'it printed none'}"
        return Answer(name, seconds=ran.seconds, attempts=1, failures=1, said=said)
    found = json.loads(lines[-1].removeprefix(ANSWER))
    config = {name: value for name, value in found["config"].items() if value is not None}
    told, size, rows = [ended] if ended else [], config.get(BATCH_SIZE), knowledge.dataset_len
    if rows is not None and type(size) is int and size > rows:
        # A loader gives such a batch as all that there is: it is no more than that which can be seen to be in effect.
        config[BATCH_SIZE] = rows
        told.append(f"it said a batch of {size:,}, which is all {rows:,} samples")
    return Answer(
        name, differing(config, knowledge), ran.seconds, found["attempts"], found["failures"], "; ".join(told)
    )  # fmt: skip


def differing(config: Mapping[str, Value], knowledge: Knowledge) -> Config:
    """The config without what the script has as it is written. Nothing is added to it: no learning rate, say."""
    written = knowledge.as_written
    return Config({k: v for k, v in config.items() if k not in written or not same_value(v, written[k])})


def ours(task: Task) -> list[Answer]:
    """``autotune study``, in a new folder; what isn't proven counts as the script as written."""
    folder = task.folder / STUDY
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "tuner", "study", task.given, "--study", str(folder)]
    limits = ["--device", task.device.label, "--budget", f"{round(task.minutes * 60)}s"]
    ran = run_for([*command, *limits], OURS_MOST * 60 * task.minutes, task.folder / "autotune.log")
    try:
        place = folder / PROFILE.file_name
        found = profiles.choose(profiles.read(place.read_bytes(), str(place)), task.device, task.cores, str(place))
        trials = open_study(str(folder)).trials
    except (OSError, AutotuneError) as error:
        said = f"no answer: {error.message if isinstance(error, AutotuneError) else error.strerror}"
        return [Answer(name, seconds=ran.seconds, attempts=1, failures=1, said=said) for name in (OURS, OURS_TIER_3)]
    outcomes = [(trial, trial.outcome) for trial in trials if trial.outcome is not None]
    tried = {trial.config for trial, _ in outcomes if trial.phase is Phase.SEARCH}
    tried |= {rotated.config for _, outcome in outcomes for rotated in outcome.rotation if rotated.config}
    failures = sum(
        trial.phase is Phase.SEARCH and not outcome.complete and outcome.kind is not OutcomeKind.UNFINISHED
        for trial, outcome in outcomes
    )
    kept = Answer(OURS, seconds=ran.seconds, attempts=len(tried), failures=failures)
    kept = replace(kept, said="nothing was proven, so it says to keep the script as written")
    larger = replace(kept, alternative=OURS_TIER_3, said="no larger batch was proven to reach a loss sooner")
    if found.verdict is Verdict.IMPROVED:
        proof = f" {gain_text(found.speedup)}" if found.speedup is not None else ""
        kept = replace(kept, config=found.config, said=f"its own proof told{proof}")
    if found.tier3 is not None and found.tier3.verdict is Verdict.IMPROVED:
        larger = replace(larger, config=found.tier3.config, said="")
    return [kept, larger]


def edited(name: str, program: str, *options: str, framework: str = "", needs: str = "") -> Alternative:
    """A program of tests/assets/side_by_side on the script's parts there, within the minutes.

    ``framework``: the only one that it is for; ``needs``: a package that may not be installed.
    """

    def answer(task: Task) -> list[Answer]:
        trains_with = task.knowledge.framework
        if framework and trains_with != framework:
            return [Answer(name, missing=f"it is for {framework}, and the script trains with {trains_with}")]
        example = ROOT / "studies" / task.name / "train.py"
        if task.path.resolve() != example or not (EDITED / f"{task.name}.py").is_file():
            return [Answer(name, missing="it needs an edited script, which only the examples in studies/ have")]
        if needs and importlib.util.find_spec(needs) is None:
            return [Answer(name, missing=f"{needs} isn't installed: pip install -e '.[side-by-side]'")]
        words = [word.format(minutes=task.minutes) for word in options]
        log = task.folder / f"{name.replace(', ', '-').replace(' ', '-')}.log"
        command = [sys.executable, str(EDITED / program), task.name, *words]
        scratch = task.folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        most_s = 60 * task.minutes + LATE_S
        ran = run_for(
            command, most_s, log, environment=environment_of(task), max_bytes=task.max_host_bytes, cwd=scratch
        )
        return [read_answer(name, ran, task.knowledge)]

    return answer


def environment_of(task: Task) -> dict[str, str]:
    """Of an edited script, beside the user's: its parts, and the study's device alone, as a trial sees it. Whatever
    looks for a card by itself would answer for that where a study of the processor is compared.
    """
    folders = (EDITED, task.path.resolve().parent)
    shown = kind_of(task.device).environment(task.device, alone=True)
    return {**shown, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def tf_data_autotune(task: Task) -> list[Answer]:
    """``AUTOTUNE`` wherever ``tf.data`` takes it, and Keras' own defaults for the rest."""
    name = "tf.data AUTOTUNE"
    if task.knowledge.framework != "keras":
        return [Answer(name, missing=f"it is for keras, and the script trains with {task.knowledge.framework}")]
    return [by_hand(name, {"parallel_calls": "auto", "prefetch": "auto", "run_eagerly": False}, task)]


def checklists(task: Task) -> list[Answer]:
    """The framework's own performance guide, with nothing measured: all of it, and what keeps the numbers alone.

    bf16 where the processor computes in it, as anybody finds by looking at its flags.
    """
    exact: dict[str, Value]
    rounding: dict[str, Value]
    on_card, known = task.device.kind == "cuda", task.knowledge
    if known.framework == "keras":
        exact = {"parallel_calls": "auto", "prefetch": "auto", "cache": True, "vectorized_map": True}
        rounding = {"run_eagerly": False, "jit_compile": True}
    else:
        exact = {"num_workers": task.cores, "persistent_workers": True, "channels_last": True}
        exact |= {"pin_memory": True, "cudnn_benchmark": True} if on_card else {}
        rounding = {"optimizer": "fused" if "fused" in known.optimizer_choices else "foreach", "compile": "default"}
    if "bf16" in known.precisions and (on_card or _computes_in_bf16()):
        rounding["precision"] = "bf16"
    return [
        by_hand("checklist", {**exact, **rounding}, task), by_hand("checklist, numbers kept", exact, task),
    ]  # fmt: skip


def by_hand(name: str, points: Mapping[str, Value], task: Task) -> Answer:
    """The points that there is something for in the script. The first point of each guide of TensorFlow's is to make
    batches with ``tf.data``, where the script's arguments offer that.

    A point that autotune can't say as a config is left out and told: done by hand it might help.
    """
    known, config, not_said = task.knowledge, dict[str, Value](), list[str]()
    rewritten = "tfdata" in (task.arguments or {}).get("input", ())
    if rewritten:
        config["input"] = "tfdata"
    for knob, value in points.items():
        if knob in known.left_out:
            not_said.append(f"{knob} ({known.left_out[knob]})")
        elif knob in known.as_written or rewritten:
            config[knob] = value
    said = f"not to be said as a config: {'; '.join(not_said)}" if not_said else ""
    return Answer(name, differing(config, known), said=said)


def _computes_in_bf16() -> bool:
    return "bf16" not in CpuDevice("cpu").emulated_precisions()


ALTERNATIVES: Mapping[str, Alternative] = {
    OURS: ours,
    "Optuna by hand": edited("Optuna by hand", "optuna_by_hand.py", "--minutes", "{minutes}"),
    "Optuna by hand, batch kept": edited(
        "Optuna by hand, batch kept", "optuna_by_hand.py", "--minutes", "{minutes}", "--keep-batch"
    ),
    "Lightning's finder": edited(
        "Lightning's finder", "lightning_finder.py", framework="torch", needs="lightning"
    ),
    "accelerate's finder": edited(
        "accelerate's finder", "accelerate_finder.py", framework="torch", needs="accelerate"
    ),
    "tf.data AUTOTUNE": tf_data_autotune,
    "checklist": checklists,
}
"""In the order in which they are asked; one may give several answers."""


def answers_of(name: str, task: Task) -> list[Answer]:
    """Raises ``UsageError`` for a name that isn't there."""
    if name not in ALTERNATIVES:
        raise UsageError(f"there is no alternative {name!r}", hint=f"there are: {', '.join(ALTERNATIVES)}")
    return ALTERNATIVES[name](task)


def document_of(answer: Answer, asked: str, changes: str) -> dict[str, Any]:
    """Its line in the results. ``asked``: the name that was asked for; ``changes``: what it changes of the training."""
    return {
        "kind": "answer", "asked": asked, "alternative": answer.alternative, "config": dict(answer.config),
        "seconds": answer.seconds, "attempts": answer.attempts, "failures": answer.failures, "said": answer.said,
        "missing": answer.missing, "changes": changes,
    }  # fmt: skip
