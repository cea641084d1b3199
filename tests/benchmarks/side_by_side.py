"""autotune beside what a user would do instead: the same script, the same minutes, measured alike. `make side-by-side`

    python tests/benchmarks/side_by_side.py studies/digits studies/photos --minutes 10 --rounds 7 --out side-by-side

Each alternative is asked once: `autotune study`, a search with Optuna written by hand, the batch-size finders of
Lightning and accelerate, tf.data's AUTOTUNE, the framework's performance checklist. What they answer is said as a
config of autotune's own space, and measured again in fresh pairs with the script as written. Nothing is taken from what
anybody measured while searching; what autotune didn't prove counts as the script as written.

Every answer and every pair is a line of results.jsonl in the script's folder below ``--out``; ended at any moment, the
same command goes on. results.md there is the tables of all scripts. How it is meant:
tests/assets/side_by_side/README.md.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from json_lines import append, finished
from side_by_side_answers import ALTERNATIVES, STUDY, Answer, Task, answers_of, document_of
from side_by_side_duets import changes_of, check, measuring, pair, plan_of
from side_by_side_table import Results, check_same, document, results_of

from tuner.devices.present import kind_of
from tuner.errors import AutotuneError, StorageError, UsageError
from tuner.formatting import config_text
from tuner.model import BASELINE, Trial
from tuner.storage.studies import open_study
from tuner.study.context import StudyContext
from tuner.study.identity import identity_of
from tuner.study.plan import StudyPlan

RESULTS = "results.jsonl"
DUETS = "duets"
_TOLD = ("python", "torch", "tensorflow", "keras", "optuna", "lightning", "accelerate")
"""Of the software, what the results are of."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Asks, measures and writes the tables; the exit status."""
    options = _options(arguments)
    try:
        found = [one_script(given, options) for given in options.scripts]
    except AutotuneError as error:
        print(f"{error.message}; {error.hint}", file=sys.stderr)
        return error.exit_code
    given = sys.argv[1:] if arguments is None else arguments
    text = document(found, shlex.join(["python", "tests/benchmarks/side_by_side.py", *given]))
    (options.out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def one_script(given: str, options: argparse.Namespace) -> Results:
    """All that is known of the script by then. Raises as ``autotune study``, and ``UsageError``."""
    plan = plan_of(given, options.out / "new", options.device)
    plan = replace(plan, folder=options.out / plan.name / DUETS)
    header = header_of(plan, options.minutes, options.rounds)
    file = options.out / plan.name / RESULTS
    lines = finished(file)
    if lines:
        results_of(lines)
        check_same(lines[0], header)
    elif options.table:
        raise StorageError(f"there are no results in {file}", hint="leave out --table")
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        append(file, header)
    if not options.table:
        answer_all(plan, given, file, options)
        measure_all(plan, file, pair)
    return results_of(finished(file))


def header_of(plan: StudyPlan, minutes: float, rounds: int) -> dict[str, Any]:
    """What the results of a script are of. Of a path that starts at the root the folders are nobody's business."""
    path = Path(plan.script.path)
    whole = identity_of(plan)
    return {
        "kind": "header", "script": path.name if path.is_absolute() else str(path), "minutes": minutes,
        "rounds": rounds, "script_sha256": plan.script.sha256, "arguments": whole["script.argv"],
        "device": plan.device.name, "cores": plan.cores,
        "software": ", ".join(f"{name} {plan.software[name]}" for name in _TOLD if name in plan.software),
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip


def answer_all(plan: StudyPlan, given: str, file: Path, options: argparse.Namespace) -> None:
    """Asks those that haven't answered yet, one after the other, and keeps what each says."""
    left = [name for name in options.only or ALTERNATIVES if not results_of(finished(file)).has(name)]
    if not left:
        return
    print(f"{plan.script.path}: what it is as written", flush=True)
    with measuring(plan) as study:
        task = task_of(study, given, file.parent, options.minutes)
    for name in left:
        print(f"{plan.script.path}: {name}", flush=True)
        for answer in answers_of(name, task):
            line = checked(study, answer, name)
            append(file, line)
            print(f"  {answer.alternative}: {answer.missing or config_text(line['config'])} {line['said']}", flush=True)


def task_of(study: StudyContext, given: str, folder: Path, minutes: float) -> Task:
    """What is asked of everybody. On the host itself nobody has more memory than a study's trials have."""
    plan = study.plan
    is_host = kind_of(plan.device).is_host
    assert plan.source is not None
    return Task(
        given, plan.source, folder, minutes, study.knowledge, plan.device, plan.cores,
        plan.limits.max_host_bytes if is_host else None,
        {name: placeholder.choices for name, placeholder in study.placeholders.items()},
    )  # fmt: skip


def checked(study: StudyContext, answer: Answer, asked: str) -> dict[str, Any]:
    """The answer's line; what can't be applied is the script as written."""
    try:
        check(study, answer.config)
    except UsageError as error:
        said = f"its answer {config_text(answer.config)} can't be applied: {error.message}"
        answer = replace(answer, config=BASELINE, failures=answer.failures + 1, said=said)
    return document_of(answer, asked, changes_of(answer.config, study.tiers, study.knowledge))


def measure_all(plan: StudyPlan, file: Path, measure: Callable[..., dict[str, Any]]) -> None:
    """Runs the pairs that are left, and keeps each."""
    results = results_of(finished(file))
    if not results.left():
        return
    with measuring(plan, _trials_of(file.parent / STUDY)) as study:
        while left := results.left():
            number, config = left[0]
            group = results.configs().index(config) + 1
            line = measure(study, config, number, results.header["rounds"], group)
            append(file, line)
            results = results_of(finished(file))
            told = line.get("failed") or line.get("void") or f"{line['candidate'] / line['written']:.3f}"
            print(f"pair {number} of {config_text(config)}: {told}", flush=True)


def _trials_of(folder: Path) -> Sequence[Trial]:
    """Those of the study that was asked; none where it wasn't, or came to nothing."""
    try:
        return open_study(str(folder)).trials
    except StorageError:
        return ()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT", help="scripts, or folders with a study.toml")
    parser.add_argument("--minutes", type=float, default=10.0, help="that each has for its answer (default 10)")
    parser.add_argument("--rounds", type=int, default=7, help="fresh pairs of each answer (default 7)")
    parser.add_argument("--out", type=Path, default=Path("autotune-side-by-side"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", type=lambda text: text.split(","), help="these alternatives: A,B")
    parser.add_argument("--table", action="store_true", help="runs nothing, and writes the tables of what there is")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.only or () if name not in ALTERNATIVES]
    if unknown or given.rounds < 2 or given.minutes <= 0:
        parser.error(f"there is no {unknown[0]!r}: {', '.join(ALTERNATIVES)}" if unknown else
                     "it takes two rounds at least, and more than no minutes")  # fmt: skip
    return given


if __name__ == "__main__":
    # As Ctrl-C does: nothing that was started is left behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
