"""What ``autotune run`` says of the profile: which knobs took effect, told once within the script's first steps.

Adapters apply knobs as in a trial; nothing is measured here. Each adds a ``Look``, which counts the places where a knob
was applied by now. At the end it is asked whether anything was trained at all.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from .evidence import SetBy
from .instruments import Instruments
from .knobs import Knobs
from .patches import patch
from .records import ChildRequest
from .started import StartedProcesses, libraries_that_train

STEPS = 20
"""Steps after which it is told what took effect: whatever a script does once is done by then."""
SECONDS = 30.0
"""The same, from the first sign of training, where steps aren't seen."""
NOT_APPLIED = 7
"""Exit status under ``--strict`` where a knob took no effect; the parent's ``ExitCode.NOT_APPLIED``."""
NOT_TRAINED = 8
"""Exit status where the script ended with 0 and trained nothing; the parent's ``ExitCode.NOT_TRAINED``."""
OTHERWISE_PROVEN = 2
"""Exit status where a profile isn't applied since what it was proven with differs: several devices, or, under
``--strict``, the backend of Keras; the parent's ``ExitCode.USAGE``."""
UNREACHED = "nothing that it could turn was reached"
HELP = frozenset({"-h", "--help", "--helpfull", "--helpshort", "--hydra-help", "--version", "-V"})
"""Arguments that have a script say something of itself and leave."""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where launchers say which of several processes this is."""


def _count(devices: int) -> str:
    return "one device" if devices == 1 else f"{devices} devices"


@dataclass(frozen=True)
class Effect:
    """What became of a knob by now: at how many places it was applied; ``reason``: why at none, or not at all.

    ``is_unseen``: nothing shows whether it is at work, and ``reason`` says why.
    """

    sites: int = 0
    reason: str = ""
    is_unseen: bool = False


Look = Callable[[], Mapping[str, Effect]]
"""Knob of the config → what became of it, for those that the adapter knows of."""


class AppliedRun:
    """Watches one applied run. ``failed``: under ``strict``, whether a knob was found to have no effect.
    ``interrupted``: whether Ctrl-C has ended the script.

    A forked process shares one byte of memory with this one: whether a step was taken there. ``unwatched``: frameworks
    whose training isn't seen, by a fault of ours.
    """

    def __init__(self, request: ChildRequest, knobs: Knobs, instruments: Instruments) -> None:
        self.failed = self.interrupted = False
        self._instruments = instruments
        self.steps = 0
        self._request = request
        self._knobs = knobs
        self._looks: list[Look] = []
        self._said: set[str] = set()
        self._begun = False
        self._told = not request.config
        self._pid = os.getpid()
        self._trained_in_fork = mmap.mmap(-1, 1)
        self._trained = False
        self._ends_with: int | None = None
        self._gradients: list[str] = []
        self._devices: list[Callable[[], int]] = []
        self.started = StartedProcesses()
        self.unwatched: list[str] = []

    def install(self) -> None:
        """Before the script's first line: what ends the process without a word goes by ``ended``, too."""
        if not self._request.config:
            return
        self.started.install()

        def leaving(original: Callable[[int], object]) -> Callable[[int], object]:
            return lambda status: original(self.ended(status) if os.getpid() == self._pid else status)

        patch(os, "_exit", leaving)
        for name in ("execv", "execve"):  # which the others call
            takes_descriptor = getattr(os, name) in os.supports_fd
            patch(os, name, self._replacing)
            if takes_descriptor:
                os.supports_fd.add(getattr(os, name))

    def _replacing(self, original: Callable[..., object]) -> Callable[..., object]:
        """The script becomes another program, of which nothing is seen: that is said."""

        def replace(*args: Any, **named: Any) -> object:
            path, words = args[0] if args else named.get("path"), args[1] if len(args) > 1 else named.get("argv")
            self._becomes(path, words)
            return original(*args, **named)

        return replace

    def _becomes(self, path: Any, words: Any) -> None:
        """A forked process becomes it instead of the script where that starts a program (``os.spawnv``)."""
        try:
            if os.getpid() != self._pid:
                self.started.command([path, *words])
            elif isinstance(path, int):
                self.say("the script goes on as another program, without the profile")
            elif os.access(path, os.X_OK):  # several places are tried for a name
                self.say(f"the script goes on as {os.path.basename(os.fsdecode(path))}, without the profile")
        except (TypeError, ValueError):
            pass  # nothing that can be run: it is told so

    def attend(self, look: Look) -> None:
        """Has an adapter asked when the time has come to tell."""
        self._looks.append(look)

    def counts_devices(self, look: Callable[[], int]) -> None:
        """Has an adapter asked, with the first step, on how many devices its framework computes; 0: it doesn't."""
        self._devices.append(look)

    def computes_on(self, devices: int, what: str) -> None:
        """On so many devices it trains, or could. Raises ``SystemExit`` where the profile is for several others."""
        proven = self._request.knowledge.devices
        if devices == proven or not self._request.config or os.getpid() != self._pid:
            return
        if proven == 1 or self._request.any_devices:
            self.say(f"the profile was proven on {_count(proven)}, and {what} {_count(devices)}")
            return
        self._refuse(
            f"the profile was proven on {_count(proven)}, and {what} {_count(devices)}",
            hint=f"give it {_count(proven)}; or --any-devices applies the profile all the same",
        )

    def computes_with(self, backend: str) -> None:
        """Keras is about to train, with this backend. Raises ``SystemExit`` under ``strict`` where the profile was
        proven with another one: that proves nothing of this training.

        Not where the config sets an argument of the script's, or what it asks for: one of these may be the backend.
        """
        known, config = self._request.knowledge, self._request.config
        if backend == known.backend or not (known.backend and config) or os.getpid() != self._pid:
            return
        if not config.keys().isdisjoint((*known.placeholders, *known.suggested)):
            return
        other = f"the profile was proven with Keras on {known.backend}, and Keras computes with {backend} here"
        if not self._request.strict:
            self.say(f"{other}: the config may no longer be the best")
            return
        self._refuse(other, hint=f"set KERAS_BACKEND={known.backend}, run the study again, or leave out --strict")

    def _refuse(self, error: str, *, hint: str) -> NoReturn:
        """Ends the script: the profile isn't applied."""
        self.say(f"error: {error}")
        self.say(f"hint: {hint}")
        self._told = True
        raise SystemExit(OTHERWISE_PROVEN)

    def stepped(self) -> None:
        """A training step has ended. Raises ``SystemExit`` under ``strict`` where a knob is found to have no effect."""
        self.trains()
        if self._told or os.getpid() != self._pid:
            return
        self.steps += 1
        if self.steps >= STEPS:
            self._tell(f"after {self.steps} steps")
            if self.failed and threading.current_thread() is threading.main_thread():
                raise SystemExit(NOT_APPLIED)

    def trains(self) -> None:
        """Something is trained, here or in a forked process, whether or not its steps can be counted."""
        if os.getpid() != self._pid:
            self._trained_in_fork[0] = 1
        elif not self._trained:
            self._trained = True
            devices = max((look() for look in self._devices), default=0)
            if devices:
                self.computes_on(devices, "the script computes on")

    def took_gradients(self, by: str) -> None:
        """Gradients were taken by a function after which no step is seen: an update by hand may follow."""
        if os.getpid() != self._pid:
            self.started.add(by)
        elif by not in self._gradients:
            self._gradients.append(by)

    def training_begins(self) -> None:
        """Training was seen to begin where single steps aren't: it is told some seconds later."""
        if self._told or self._begun or os.getpid() != self._pid:
            return
        self._begun = True
        timer = threading.Timer(SECONDS, self._tell, [f"after {SECONDS:.0f} s of training"])
        timer.daemon = True
        timer.start()

    def ended(self, code: int) -> int:
        """The script has ended with this exit status, maybe before anything was told; gives the one to end with.

        A script that trained nothing and ends with 0 is told from one that did. Not accused are those that were asked
        for help, ranks beside the first one, and those that may have trained where it can't be seen. Of a script that
        leaves once more, as an exit handler may, the first answer stays: its threads are gone by then.
        """
        if code == 0 and self._ends_with is not None:
            return self._ends_with
        status = self._ended(code)
        if code == 0:
            self._ends_with = status
        return status

    def _ended(self, code: int) -> int:
        trained = self._trained or bool(self._trained_in_fork[0])
        if not self._request.config or (code == 0 and not trained and not HELP.isdisjoint(self._request.argv)):
            return code
        seen = f"after {self.steps} steps" if self.steps else "at the script's end"
        self._tell(seen)
        unseen = [] if trained or code else self._may_train_unseen()
        if unseen:
            self.say(f"no training step was seen here; {', '.join(unseen)} may have trained, without the profile")
        elif self._gradients and not trained and not code:
            by = ", ".join(self._gradients)
            self.say(f"no training step was seen, but gradients were taken by {by}: an update by hand may have trained")
        elif not trained and code == 0 and not any(os.environ.get(name, "0") != "0" for name in RANKS):
            self.say(f"no training step was seen; exit status {NOT_TRAINED} instead of 0")
            self.say(
                "hint: an evaluation, or a training that is complete already, needs no profile: run it without; what"
                " trains by other means than PyTorch, TensorFlow, Keras and JAX says so by tuner.report(step=n)"
            )
            return NOT_TRAINED
        return NOT_APPLIED if self.failed and code == 0 else code

    def _may_train_unseen(self) -> list[str]:
        """What may have trained where steps aren't seen: other libraries, processes, threads that go on."""
        main = threading.main_thread()
        threads = [each.name for each in threading.enumerate() if each is not main and not each.daemon]
        rpc = getattr(sys.modules.get("torch.distributed.rpc"), "_init_counter", 0)
        found = [
            *self.unwatched, *self.started.may_train, *libraries_that_train(),
            *(f"the thread {name}" for name in threads),
            *(["processes that are called by torch.distributed.rpc"] if rpc else []),
        ]  # fmt: skip
        return list(dict.fromkeys(found))

    def say(self, text: str) -> None:
        """Prints a line for people, once; of several ranks the first one speaks."""
        if text in self._said or os.environ.get("RANK", "0") != "0" or os.getpid() != self._pid:
            return
        self._said.add(text)
        try:
            # In one write, past the script's own stream: it may be closed, or be written to in this very moment. Where
            # standard error itself was closed, a file of the script's may have its number: what Python opens isn't
            # inherited by other programs, as standard error is, and what is put in its place by ``os.dup2``.
            if sys.__stderr__ is not None and os.get_inheritable(2):
                os.write(2, f"autotune: {text}\n".encode(errors="replace"))
        except OSError:
            pass  # nobody reads it any more

    def _tell(self, when: str) -> None:
        if self._told:
            return
        self._told = True
        effects = {knob: self._effect(knob) for knob in self._request.config}
        working = [knob + (f" ({e.sites} places)" if e.sites > 1 else "") for knob, e in effects.items() if e.sites]
        idle = [f"{knob} ({e.reason or UNREACHED})" for knob, e in effects.items() if not (e.sites or e.is_unseen)]
        unseen = [f"{knob} ({e.reason})" for knob, e in effects.items() if e.is_unseen and not e.sites]
        parts = [f"in effect: {', '.join(working)}"] if working else []
        parts += [f"NOT in effect: {', '.join(idle)}"] if idle else []
        parts += [f"can't be told: {', '.join(unseen)}"] if unseen else []
        self.failed = bool(idle) and self._request.strict
        self._instruments.off = self._trained  # nothing more is asked: the rest of the run goes without them
        self.say(f"{when} {'; '.join(parts)}")

    def _effect(self, knob: str) -> Effect:
        """What became of one knob, by all that know of it."""
        kept = self._knobs.kept_by_script.get(knob)
        if kept is not None:
            return Effect(0, kept)
        set_by = self._knobs.set_by(knob)
        if set_by is SetBy.ARGUMENT:
            return Effect(1)  # it stands in the script's arguments
        found = [effect for look in self._looks if (effect := self._asked(look).get(knob)) is not None]
        if not found and set_by is SetBy.OPTION:
            return Effect(1)  # an option of a trainer, which was set when it was delegated
        reasons = (effect.reason for effect in found if effect.reason)
        is_unseen = any(effect.is_unseen for effect in found)
        return Effect(sum(effect.sites for effect in found), next(reasons, ""), is_unseen)

    def _asked(self, look: Look) -> Mapping[str, Effect]:
        try:
            return look()
        except Exception as error:
            # A fault of ours must not take the training down; what isn't known is told as not in effect.
            self.say(f"a fault of its own: what was applied can't be told: {type(error).__name__}: {error}")
            return {}
