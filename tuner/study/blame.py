"""Whose fault it is that the script as written fails in a trial: its own, or that of what watches it.

That a script fails by itself may be said only where plain Python fails as well. So a baseline that fails is run again
without what autotune does to it, for as long as the failure took and a margin; what runs on until then doesn't fail.

First everything is left out but the watch on files. Plain Python, which that watch doesn't keep from the user's files,
is tried only where the script fails so too, where nothing of the user's was written until then, and for hardly longer
than that took. What runs in either way is broken by autotune, unless it also runs when it is run as in the trial again:
then it failed by chance, as by what it draws.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from tuner import __version__
from tuner.analysis.resources import lost_share
from tuner.analysis.turns import DISTURBED
from tuner.child.watch import Watch
from tuner.child.wire import FILES, KEPT
from tuner.model import Outcome, OutcomeKind
from tuner.runner.classify import KILLED, OUT_OF_MEMORY, WITHHELD_REASON
from tuner.runner.log_text import frames_in, is_frame, raised_line
from tuner.runner.plain.sitecustomize import BY_LIBRARY, SILENCED
from tuner.runner.request import TrialRequest
from tuner.storage.folder import RESOURCES
from tuner.storage.records import read_resources
from tuner.study.surroundings import is_import_error

MARGIN_S = 10.0
TIMES = 2.0
"""A run that is to show whether a failure comes again may take so many times as long as it took, and the margin."""
PLAIN_MARGIN_S = 3.0
"""Plain Python may take so much longer than the failure did: beyond it, the script may write what no trial showed."""
LEAST_TIMES = 1.2
"""A run has to be able to take so many times as long as the failure took, and that margin, or it isn't begun: one that
the budget cuts off sooner may only have been slower.
"""
SEARCH_S = 180.0
"""The search for the watch at fault takes no longer, or ``SEARCH_TIMES`` as long as the failure took."""
SEARCH_TIMES = 6.0
ALL = frozenset(Watch)
_FAILURES = frozenset({"script-raised", "script-failed"})
_UNDECIDED = frozenset({OutcomeKind.INFRASTRUCTURE, OutcomeKind.NO_PROGRESS})
_OF_THE_MACHINE = KILLED | OUT_OF_MEMORY
"""Reasons for which a run ended that tell of the machine at that moment, and nothing of the script."""
_BARE, _PLAIN, _AGAIN = "without any watch but files", "plain Python", "as in the trial"

_NAMED, _OF_SYNTAX = re.compile(r'  File "([^"\n]+)"'), re.compile(r"(?:Syntax|Indentation|Tab)Error\b")
_OURS = "/tuner/child/"
# A file of the child's → the watch that it belongs to: the first that fits. Of the rest, all watches make use.
_FILES_OF_WATCHES = (
    ("torch/loader.py", Watch.LOADER), ("torch/datasets.py", Watch.LOADER), ("torch/copies.py", Watch.LOADER),
    ("torch/own_loaders.py", Watch.LOADER), ("torch/loader_places.py", Watch.LOADER),
    ("torch/made_iterators.py", Watch.LOADER),
    ("torch/loader_workers.py", Watch.LOADER), ("torch/own_data.py", Watch.LOADER),
    ("torch/script_indices.py", Watch.LOADER),
    ("torch/counting.py", Watch.LOADER), ("torch/lasting.py", Watch.LOADER), ("torch/queues.py", Watch.LOADER),
    ("torch/modules.py", Watch.MODULES),
    ("torch/conditions.py", Watch.MODULES), ("torch/reached.py", Watch.MODULES), ("torch/rows.py", Watch.MODULES),
    ("torch/compiler.py", Watch.MODULES), ("torch/parts.py", Watch.MODULES), ("torch/calls.py", Watch.MODULES),
    ("torch/state.py", Watch.MODULES), ("torch/draws.py", Watch.MODULES), ("torch/ddp.py", Watch.MODULES),
    ("torch/losses.py", Watch.LOSSES), ("torch/trainers.py", Watch.TRAINERS), ("torch/trackers.py", Watch.TRACKERS),
    ("torch/processes.py", Watch.PROCESSES), ("torch/files.py", Watch.FILES), ("torch/", Watch.OPTIMIZER),
    ("keras/losses.py", Watch.LOSSES), ("keras/", Watch.KERAS), ("tensorflow/data/", Watch.TF_DATA),
    ("tensorflow/files.py", Watch.FILES), ("tensorflow/gfile.py", Watch.FILES),
    ("tensorflow/data_files.py", Watch.FILES), ("tensorflow/", Watch.TENSORFLOW), ("arguments.py", Watch.ARGUMENTS),
    ("created_files.py", Watch.FILES), ("files.py", Watch.FILES), ("python_files.py", Watch.FILES),
    ("renames.py", Watch.FILES), ("whole_paths.py", Watch.FILES), ("folders.py", Watch.FILES),
    ("mapped.py", Watch.FILES), ("carried.py", Watch.FILES), ("spawned.py", Watch.FILES), ("formats/", Watch.FILES),
    ("numpy/", Watch.FILES), ("jax/losses.py", Watch.LOSSES), ("jax/", Watch.JAX),
)  # fmt: skip


class Whose(StrEnum):
    """Whose fault a failure is; ``OPEN`` where that couldn't be tried, or not without danger to files or trackers.

    ``CHANCE``: it doesn't come again, with autotune's instruments or without.
    """

    SCRIPT = "script"
    OURS = "ours"
    CHANCE = "chance"
    OPEN = "open"


@dataclass(frozen=True)
class Verdict:
    """Whose fault a failure is, and how that is known.

    ``plain`` is what the script came to under plain Python, None where that wasn't tried. ``ways`` are sets of watches
    without which it runs in a trial, the smallest first: empty where that would take the watch on files away.
    ``silenced`` are the trackers that were off under plain Python as well, and that may explain the failure: it goes
    through them, or names them, or shows nothing of where it comes from. ``account`` says for people what was run, and
    what it came to. ``obstacle``: which run that was to decide came to nothing, by the machine, and how; "" for none.
    ``off``: trackers of the script's own that were off, and of which the failure shows nothing: what they gave may be
    missing all the same. ``lacked_s``: what the study's budget lacked for a run that was to decide; 0.0 for nothing.
    """

    whose: Whose
    plain: Outcome | None = None
    ways: tuple[frozenset[Watch], ...] = ()
    account: tuple[str, ...] = ()
    silenced: tuple[str, ...] = ()
    obstacle: str = ""
    off: tuple[str, ...] = ()
    lacked_s: float = 0.0


def may_be_ours(outcome: Outcome) -> bool:
    """Whether the script failed, and not at a limit: something of ours may have made it fail.

    What was killed was killed by others: neither a script nor an instrument sends itself a SIGKILL.
    """
    if outcome.complete or outcome.kind is OutcomeKind.INFRASTRUCTURE or outcome.reason in KILLED:
        return False
    crashed = outcome.kind is OutcomeKind.CRASHED and outcome.reason.startswith("signal-")
    return crashed or outcome.reason in _FAILURES or bool(outcome.traceback_text)


def alike(one: Outcome, other: Outcome) -> bool:
    """Whether two failures are of one kind: the same exception or signal, or an exit status without a traceback."""
    types = [raised_line(outcome.traceback_text).partition(":")[0] for outcome in (one, other)]
    return types[0] == types[1] and (bool(types[0]) or one.reason == other.reason)


def names_file_of_trial(failed: Outcome, trial: Path) -> bool:
    """Whether what was raised tells of a path in the trial's folder: the script itself knows of none there."""
    raised = raised_line(failed.traceback_text)
    return any(str(folder / FILES) in raised for folder in (trial.absolute(), trial.resolve()))


def cannot_be_parsed(failed: Outcome) -> bool:
    """Whether the failure is an error of syntax in a file that Python can't compile here, either: no instrument of ours
    changes what stands there, and nothing has to be run to see whose fault that is.
    """
    named = _NAMED.match(next(iter(frames_in(failed.traceback_text)[-1:]), ""))
    if named is None or not _OF_SYNTAX.match(raised_line(failed.traceback_text)):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it warns as it compiles the script was told
            compile(Path(named[1]).read_bytes(), named[1], "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return True
    except (OSError, RecursionError, MemoryError):
        pass  # no file, or one of which nobody can tell here
    return False


def longest_check_s(failed: Outcome) -> float:
    """How long a run may take that is to show whether the failure comes again."""
    return TIMES * failed.seconds + MARGIN_S


def least_check_s(failed: Outcome) -> float:
    """How long it has to be able to take, so that it tells anything where it doesn't fail."""
    return LEAST_TIMES * failed.seconds + PLAIN_MARGIN_S


class Inquiry:
    """Runs the script as written again, with ever other watches. ``request`` is that of the run that ``failed``.

    ``folder`` is for the runs' folders, ``run`` does one of them and raises ``Interrupted``. ``left_s`` gives the
    seconds that the study has left: a run is ended with them, and none begins that may not show the failure by then.
    ``by_chance_before``: whether an earlier failure was taken for one by chance; this one isn't any more.
    """

    def __init__(
        self, request: TrialRequest, failed: Outcome, folder: Path, run: Callable[[TrialRequest], Outcome],
        left_s: Callable[[], float] = lambda: math.inf, *, by_chance_before: bool = False,
    ) -> None:  # fmt: skip
        self._request = request
        self._failed = failed
        self._folder = folder
        self._run = run
        self._left_s = left_s
        self._may_be_chance = not by_chance_before
        self._account: list[str] = []
        self._spent_s = 0.0

    def verdict(self) -> Verdict:
        """Whose fault the failure is, and without which watches the script runs."""
        lacked_s = self._lacked_s(_BARE, least_check_s(self._failed))
        if lacked_s:
            return Verdict(Whose.OPEN, account=tuple(self._account), lacked_s=lacked_s)
        bare = self._bare()
        if self._decides_nothing(_BARE, bare):
            return Verdict(Whose.OPEN, account=tuple(self._account), obstacle=f"{_BARE}: {bare.detail}")
        if not may_be_ours(bare):
            if self._runs_again():
                return Verdict(Whose.CHANCE, account=tuple(self._account))
            return Verdict(Whose.OURS, None, tuple(self._ways()), tuple(self._account))
        written = [*_diverted(self._request.folder), *_diverted(self._folder_of(_BARE))]
        if any(map(os.path.lexists, written)):
            return Verdict(Whose.OPEN, account=tuple(self._account))
        longest_s = max(self._failed.seconds, bare.seconds) + PLAIN_MARGIN_S
        lacked_s = self._lacked_s(_PLAIN, longest_s)
        if lacked_s:
            return Verdict(Whose.OPEN, account=tuple(self._account), lacked_s=lacked_s)
        plain = self._check(_PLAIN, plain=True, made=tuple(written), longest_s=longest_s)
        if self._decides_nothing(_PLAIN, plain):
            obstacle = f"{_PLAIN}: {plain.detail}" if plain.reason != WITHHELD_REASON else ""
            return Verdict(Whose.OPEN, account=tuple(self._account), obstacle=obstacle)
        if not may_be_ours(plain):
            whose = Whose.CHANCE if self._runs_again() else Whose.OURS
            return Verdict(whose, plain, account=tuple(self._account))
        imported = _silenced(self._folder_of(_PLAIN)) if plain.kind is not OutcomeKind.INFEASIBLE else {}
        # A log may hold more behind its traceback, such as a tracker's last word.
        told = self._failed if alike(self._failed, plain) else plain
        silenced = tuple(sorted(name for name in imported if _may_explain(name, told)))
        whose = Whose.OPEN if silenced else Whose.SCRIPT
        off = tuple(sorted(name for name, by_user in imported.items() if by_user or self._is_named(name)))
        return Verdict(whose, plain, (), tuple(self._account), silenced, off=off)

    def _lacked_s(self, name: str, needed_s: float) -> float:
        """What is missing of the seconds that a run needs to tell anything; 0.0 where none are."""
        lacked_s = max(0.0, needed_s - self._left_s())
        if lacked_s:
            self._account.append(f"{name}: the budget has no time for it")
        return lacked_s

    def _is_named(self, tracker: str) -> bool:
        """Whether the script names it. What a library has imported before the script does isn't imported again."""
        with contextlib.suppress(OSError, ValueError):
            source = Path(self._request.script.path).read_text(encoding="utf-8")
            return re.search(rf"\b{tracker}\b", source) is not None
        return False

    def _decides_nothing(self, name: str, check: Outcome) -> bool:
        """Whether a run that was to show whether the failure comes again ended by the machine, and not likewise.

        One that waits for something without computing, such as a download, doesn't come to the failure either; nor does
        one that others kept from the cores until its time was up.
        """
        by_machine = check.kind in _UNDECIDED or check.reason in _OF_THE_MACHINE or self._was_held_up(name, check)
        return by_machine and not (may_be_ours(check) and alike(self._failed, check))

    def _was_held_up(self, name: str, check: Outcome) -> bool:
        """Whether a run that its time limit ended had computed for less than the failure had taken, beside others that
        used the cores.
        """
        if check.kind is not OutcomeKind.TIMED_OUT:
            return False
        failed, samples = (read_resources(of / RESOURCES) for of in (self._request.folder, self._folder_of(name)))
        if not failed or not samples:
            return False
        others = lost_share(samples, samples[0].t, samples[-1].t)
        # The last reading of a tree that is gone has no CPU time.
        computed_s, failed_s = (max(sample.cpu_s for sample in read) for read in (samples, failed))
        return others > DISTURBED and computed_s < failed_s

    def _bare(self) -> Outcome:
        return self._check(_BARE, ALL - {Watch.FILES} | self._request.without)

    def _runs_again(self) -> bool:
        """Whether the script runs as it failed before, with all that was in place. Where nobody can tell it doesn't."""
        if not self._may_be_chance or self._lacked_s(_AGAIN, least_check_s(self._failed)):
            return False
        again = self._check(_AGAIN, self._request.without)
        return not (may_be_ours(again) or self._decides_nothing(_AGAIN, again))

    def _ways(self) -> Iterator[frozenset[Watch]]:
        """Without which watches the script runs: one of them if that is enough, and all but the one on files."""
        off = self._request.without
        for watch in self._suspects():
            if self._spent_s > max(SEARCH_S, SEARCH_TIMES * self._failed.seconds):
                break
            if self._lacked_s(f"without {watch}", least_check_s(self._failed)):
                break
            if not may_be_ours(self._check(f"without {watch}", off | {watch})):
                yield off | {watch}
                break
        yield ALL - {Watch.FILES} | off

    def _suspects(self) -> list[Watch]:
        """The watches that were in place: first those whose code the failure went through, from its innermost frame."""
        in_place = self._failed.knowledge.watches or tuple(Watch)
        ordered = dict.fromkeys([*watches_in(self._failed.with_ours), *in_place])
        return [watch for watch in ordered if watch is not Watch.FILES and watch not in self._request.without]

    def _folder_of(self, name: str) -> Path:
        return self._folder / name.replace(" ", "-")

    def _check(
        self, name: str, without: frozenset[Watch] = frozenset(), *, plain: bool = False, made: tuple[str, ...] = (),
        longest_s: float | None = None,
    ) -> Outcome:  # fmt: skip
        longest_s = min(longest_check_s(self._failed) if longest_s is None else longest_s, self._left_s())
        limits = replace(self._request.limits, trial_timeout_s=longest_s, no_progress_s=longest_s)
        folder = self._folder_of(name)
        request = replace(self._request, folder=folder, without=without, plain=plain, made=made, limits=limits)
        outcome = self._run(request)
        self._spent_s += outcome.seconds
        came_to = outcome.detail if may_be_ours(outcome) or self._decides_nothing(name, outcome) else "it runs"
        self._account.append(f"{name}: {came_to}")
        return outcome


def _silenced(folder: Path) -> dict[str, bool]:
    """The trackers that were imported under plain Python and that were off, other than the user has them.

    Whether the user's own code imported it, or else a library that does so wherever it is installed.
    """
    with contextlib.suppress(OSError):
        told = (folder / SILENCED).read_text(encoding="utf-8").split()
        return {line.removesuffix(BY_LIBRARY): not line.endswith(BY_LIBRARY) for line in told}
    return {}


def _may_explain(module: str, failed: Outcome) -> bool:
    """Whether a module may have to do with a failure: by its frames, the code that they show, or what was raised.

    Most scripts that import a tracker fail without it. Where there is no traceback nothing tells. That it can't be
    imported isn't for being off.
    """
    if is_import_error(failed):
        return False
    lines = failed.traceback_text.splitlines()
    frame, code = re.compile(rf'  File ".*-packages/{module}/'), re.compile(rf"  .*(?<![\w./-]){module}\.")
    raised = re.compile(rf"(?! ).*(?<![\w-]){module}\b", re.IGNORECASE)
    return not lines or any(
        frame.match(line) or raised.match(line) or (code.match(line) and not is_frame(line)) for line in lines
    )


def _diverted(trial: Path) -> Iterator[str]:
    """The paths that a trial had versions of its own of, or saw removed, or that it made: where they lay."""
    with contextlib.suppress(OSError):
        for line in (trial / KEPT).read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # torn by whatever ended the trial
                yield json.loads(line)
    for here, _, names in os.walk(trial / FILES):
        yield from (os.path.join(os.sep, os.path.relpath(here, trial / FILES), name) for name in names)


def watches_in(traceback_text: str) -> list[Watch]:
    """The watches whose code a traceback with our frames goes through, innermost first."""
    places = [line.partition(_OURS)[2] for line in frames_in(traceback_text)]
    named = [
        next((watch for start, watch in _FILES_OF_WATCHES if place.startswith(start)), None)
        for place in reversed(places) if place
    ]  # fmt: skip
    return list(dict.fromkeys(watch for watch in named if watch is not None))


def is_raised_by_us(failed: Outcome) -> bool:
    """Whether code of ours raised it, or what that calls without a frame: not the script, nor a library."""
    return any(_OURS in innermost for innermost in frames_in(failed.with_ours)[-1:])


def fault_text(failed: Outcome, verdict: Verdict) -> str:
    """What is kept of a fault of ours, to be reported."""
    how = "may break this script by chance" if verdict.whose is Whose.CHANCE else "breaks this script"
    return "\n".join(
        (
            f"autotune {__version__} {how}: {failed.detail}", "",
            "The script was run again, to see whose fault that is:",
            *(f"  {line}" for line in verdict.account), "",
            "The failure, with autotune's own frames:" if failed.with_ours else "The failure, in frames of others:",
            failed.with_ours or failed.traceback_text or "(no traceback)",
        )
    )  # fmt: skip
