"""One trial in its process: which framework trains, where a step ends, when and how the trial ends.

What else a trial consists of lies beside it: ``request`` (what was asked for), ``clock`` (steps to blocks), ``knobs``
(who applies which, and what is reported of it), ``facts`` (what is seen of the script), ``metrics`` (its own figures).
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

from . import devices
from .applied import AppliedRun
from .clock import StepClock
from .facts import ScriptFacts
from .feeds import Feeds
from .knobs import Knobs
from .metrics import Metrics, told_numbers
from .participants import ClockHooks as ClockHooks
from .participants import ExitListener as ExitListener
from .participants import ScriptOptions as ScriptOptions
from .recorder import Recorder
from .records import ChildRequest, Failure, FirstStep, Loss, Mode, Note, TrainingPause, WindowEnd
from .reported import ReportedSamples, ReportedSteps
from .rotation import Rotating, Rotation
from .user_modules import UserModules
from .watch import KNOBS_OF, Pause, Watch

STOP_GRACE_S = 6.0
LEAVING_S = 5.0
"""Before its deadline a trial needs so much, or a tenth of its time, to write down what it saw and to leave."""


class StopTrial(BaseException):
    """Unwinds the user's script once the window is complete. Not an Exception: ``except Exception`` lets it by."""


class _NoOptions(ScriptOptions):
    """Of a script whose options nothing is known of."""


class Session:
    """One trial, or one applied run (mode "apply": knobs only, nothing measured)."""

    # Of those that train together; the process's, where its script is unwound; whether a side of its loop runs alone.
    ranks, exit_code, is_probed = 1, 0, False

    def __init__(self, request: ChildRequest, recorder: Recorder, clock: StepClock | None = None) -> None:
        self.request = request
        self.recorder = recorder
        self.measuring = request.mode is not Mode.APPLY
        self.device = devices.named(request.device)
        self.clock = clock or StepClock(recorder, request.window)
        self.clock.asynchronous = self.device.asynchronous
        self.clock.counts_samples = request.knowledge.unit != "steps"
        self.clock.instruments.knows(request.knowledge, request.config)
        self.clock.instruments.is_wanted = lambda: self._is_only_timed
        self.clock.recurring.decide_as(request.knowledge, request.config)
        self.knobs = Knobs(recorder, request.config, request.knowledge.placeholders, self._ended_early)
        self.applied = None if self.measuring else AppliedRun(request, self.knobs, self.clock.instruments)
        self.facts = ScriptFacts(without=list(request.without))
        self.metrics = Metrics(recorder, self.clock)
        self.options: ScriptOptions = _NoOptions()
        self.rotation: Rotating | None = None
        self.feeds = Feeds(request.knowledge.framework)
        self._modules = UserModules(request.folder)
        self.exit_listeners: list[ExitListener] = []
        self.observers: list[Callable[[], None]] = []
        """Called once, when the window or the script has ended."""
        self.trained_by = request.knowledge.framework
        """The framework that trains; "" as long as none is seen to."""
        self.stopped = self.finished = self.ended_badly = False  # the last: whether the script ended with an error
        self.thread, self._forked_off = threading.get_ident(), False
        self._started = time.monotonic() if request.spawned_monotonic is None else request.spawned_monotonic
        deadline_s = math.inf if request.deadline_s is None else request.deadline_s
        self._ends_by = self._started + deadline_s - min(LEAVING_S, deadline_s / 10)
        self._last_step = self._started
        self._suggestions, self._said = dict[str, object](), set[str]()
        self._first_loss: str | None = None
        self._clock_hooks: dict[str, ClockHooks] = {}
        self._own_steps = 0
        self._reported, self._told_steps = ReportedSamples(self.clock), ReportedSteps()
        self.clock.is_untold = self._samples_may_come
        # A config's window may be a quarter of the one in which the script as written told of its samples.
        self.clock.told_within = 8 if request.knowledge.unit else 2
        self.clock.on_held = self._was_held
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """A forked loader worker runs the user's dataset; nothing in it may be recorded or stopped."""
        self._forked_off = True
        self.measuring = self.stopped = self.clock.instruments.is_under_way = False

    @property
    def here(self) -> bool:
        """Whether this is the process that the trial measures. Not asked of the system: a compiler may trace it."""
        return not self._forked_off

    @property
    def is_as_written(self) -> bool:
        """Whether this is a trial of the script as written, with both sides of its loop, and nothing else."""
        request = self.request
        return self.measuring and not (request.config or request.probe or request.rotation)

    def uses(self, watch: Watch) -> bool:
        """Whether the watch is to be put in place; called when that is about to be done."""
        if watch in self.request.without:
            return False
        if watch not in self.facts.watches:
            self.facts.watches.append(watch)
        return True

    def attend(self, framework: str, hooks: ClockHooks, observe: Callable[[], None]) -> None:
        """The framework's adapter answers the clock, once its framework is the one that trains.

        ``observe`` is called once, when the window or the script has ended.
        """
        if framework in self._clock_hooks:
            return
        self._clock_hooks[framework] = hooks
        self.observers.append(observe)
        if self.trained_by == framework:
            self._ask_hooks()

    def claim(self, framework: str) -> None:
        """The framework is seen to train. The first one does; a script may import several."""
        if not self.trained_by:
            self.trained_by = framework
            self._ask_hooks()

    def _ask_hooks(self) -> None:
        hooks = self._clock_hooks.get(self.trained_by)
        if hooks is not None:
            self.clock.synchronize = hooks.synchronize
            self.clock.activity = lambda: hooks.activity() + self._reported.changes
            self.clock.on_block = hooks.on_block
            self.clock.ready, self.clock.ends_are_told = hooks.ready, self.trained_by == "torch"
            self.clock.instruments.may_go_off = hooks.may_go_off
            self._rotate(hooks)

    @property
    def _is_only_timed(self) -> bool:
        """Whether the trial is for a precise rate of warm steps alone, in one process, where the hooks count them."""
        request, window = self.request, self.request.window
        more = request.rotation or request.probe or window.until_samples or request.seed is not None
        is_precise = window.warmup_s > 0 and window.target_half_width < 1
        return is_precise and self.ranks == 1 and not (more or self._own_steps or self._reported.any)

    def _rotate(self, hooks: ClockHooks) -> None:
        """Has configs take turns in the window, where that was asked for."""
        if self.request.rotation and self.rotation is None:
            self.rotation = Rotation(self.recorder, self.request.rotation, hooks.switcher(), self._refuse_rotation)
            self.clock.turns = self.rotation

    def _refuse_rotation(self, why: str) -> None:
        self.fail("unsupported", f"no rotation: {why}")

    def may_be_of(self, framework: str) -> bool:
        """Whether no other framework trains here: what this one's adapter sees is worth something."""
        return self.trained_by in ("", framework)

    def suggest(self, knob: str, default: Any) -> Any:
        """For ``tuner.suggested``: the config's value, or the script's own default."""
        self._suggestions[knob] = default
        self.knobs.delegate(knob)
        return self.request.knowledge.given(self.request.config).get(knob, default)

    def report(self, metrics: Mapping[str, SupportsFloat]) -> None:
        """For ``tuner.report``. "step" counts the script's own steps, "samples" what it trained on by then."""
        told = told_numbers(metrics, self.facts.remark)
        step, samples = told.pop("step", None), told.pop("samples", None)
        self.metrics.report(told)
        if self.applied is not None and max(step or 0.0, samples or 0.0) > 0:
            self.applied.trains()
        if self.measuring and self.here:
            if step is not None:
                self._progressed(int(step), samples)
            elif samples is not None:
                self._reported.report(samples)

    def log(self, name: str, value: object) -> None:
        """A metric that the script gives to a logger or a trainer: its last value is sent at the end."""
        if self.measuring and self.here:
            self.metrics.log(name, value)

    def stated_batch_size(self) -> int:
        """Samples that a batch is meant to hold, as an argument or a question of the script says; 0 where none does.

        Only where the baseline was counted in samples too: its rate is what the others are held against.
        """
        knowledge = self.request.knowledge
        bound = "batch_size" in self._suggestions or "batch_size" in self.knobs.arguments
        if not bound or self._own_steps or self._reported.any or knowledge.unit not in ("", "samples"):
            return 0
        stated = (
            knowledge.given(self.request.config).get("batch_size"), knowledge.as_written.get("batch_size"),
            self._suggestions.get("batch_size"), self.options.value("batch_size"),
        )  # fmt: skip
        return next((size for size in stated if type(size) is int), 0)

    def _progressed(self, step: int, samples: float | None) -> None:
        """The script counts its own steps, which are taken where no step can be seen."""
        before, total = self._own_steps, self._told_steps.total(step, samples)
        if samples is not None:
            self._reported.report(samples)
        if total > before and (before or not self.clock.total_steps):
            self._own_steps = total
            self._step(total - before)

    @property
    def counts_its_steps(self) -> bool:
        """Whether the script's own steps are counted, and those of its framework are not."""
        return self._own_steps > 0

    @property
    def samples_are_reported(self) -> bool:
        """Whether the samples are counted by the script's own word."""
        return self._reported.any and (self._own_steps > 0 or self._reported.tell_of_steps)

    def _samples_may_come(self) -> bool:
        """Whether the script is yet to report what its samples are counted by."""
        unit = self.request.knowledge.unit
        if self._own_steps or unit == "steps" or self.request.probe is not None:
            return False
        return self._reported.may_come(known=unit == "samples")

    def fail(self, reason: str, detail: str) -> None:
        """Records once that this config can't work. ``reason`` is a slug, ``detail`` a line for people.

        An applied run says it, and goes on without what can't be had.
        """
        if self.applied is not None:
            self.applied.say(detail)
        if self.measuring and self._says_first(reason):
            self.recorder.emit(Failure(reason, detail))

    def loss(self, value: float, site: str = "", objective: str = "", progress: float | None = None) -> None:
        """A training loss as it is now, or at that ``progress``; ``site`` and ``objective`` as in ``Loss``.

        A first one that isn't finite ends the trial: such a config can't train. Others may be so as written.
        """
        progress = self.clock.progress if progress is None else progress
        self.recorder.emit(Loss(progress, value, site, "" if objective == site else objective))
        if self._first_loss is None:
            self._first_loss = site
        if site == self._first_loss and not math.isfinite(value):
            if self.rotation is not None and self.rotation.diverged():
                return
            self.fail("nan", f"the training loss became {value}")
            self.stop("the loss is not finite", complete=False)

    def pause(self, pause: Pause, *, begins: bool) -> None:
        """Tells that training pauses for what may take long, or goes on: the parent waits by what it knows of it."""
        if self.measuring and self.here:
            self.recorder.emit(TrainingPause(pause, begins))

    def note(self, text: str) -> None:
        """A line for people, recorded once; an applied run says it, since nobody reads its records."""
        if self.applied is not None:
            self.applied.say(text)
        elif self._says_first(text):
            self.recorder.emit(Note(text))

    def _says_first(self, text: str) -> bool:
        is_new = text not in self._said
        self._said.add(text)
        return is_new

    def step(self, framework: str, count: int = 1) -> None:
        """So many steps ended; called by the framework's adapter, outside of the script's own locks."""
        self.claim(framework)
        if self.may_be_of(framework) and not self._own_steps:
            self._reported.stepped(count)
            self._step(count)

    def _step(self, count: int = 1) -> None:
        if self.stopped:
            raise StopTrial
        if self.clock.total_steps == 0:
            spared_s = self.request.spared_s
            self.recorder.emit(FirstStep(time.monotonic() - self._started + spared_s, spared_s))
            if self.measuring:
                # In every trial, although the baseline's alone are sent: what it leaves of the heap made numpy's
                # temporary arrays, and so the script as written, 7 to 10% faster than the same script under a config.
                self._modules.begin()
        if self.clock.step(count):
            self._end_window("the window is complete", complete=True)
        if self._is_late():
            self._end_window("its time was up before its window was complete", complete=False)

    @property
    def left_s(self) -> float:
        """Until the trial has to leave; infinite without a deadline."""
        return self._ends_by - time.monotonic()

    def _was_held(self, seconds: float) -> None:
        """Others had their turns: that is no time of this trial's, unless they had them in its own process."""
        if self.rotation is None:
            self._ends_by += seconds
        self._last_step += seconds

    def _is_late(self) -> bool:
        """Whether the deadline may come before another step ends, with enough measured to be worth keeping."""
        now = time.monotonic()
        lasted, self._last_step = now - self._last_step, now
        return now + lasted > self._ends_by and self.clock.is_measurable

    def _ended_early(self) -> bool:
        """Whether the script ended before a knob could show."""
        return self.ended_badly or not self.clock.total_steps

    def check_stop(self) -> None:
        """Raises again wherever a hook is reached: a script may have swallowed the first one."""
        if self.stopped and self.here and threading.get_ident() == self.thread:
            raise StopTrial

    def meets_others(self) -> None:
        """The script is about to wait for the other ranks, where it has any."""

    def _end_window(self, why: str, *, complete: bool) -> None:
        self.stop(why, complete=complete)

    def stop(self, why: str, *, complete: bool = True) -> None:
        """Writes what was seen, then unwinds the script; a watchdog ends a process that won't unwind.

        Does nothing in an applied run: that is the user's own training, and ends where the script ends.
        """
        if self.finished or self.applied is not None:
            return  # what is being written down says it already
        self.finish(complete=complete, why=why)
        self.stopped = True
        threading.Thread(target=_watchdog, daemon=True, name="autotune-watchdog").start()
        raise StopTrial

    def finish(self, *, complete: bool, why: str = "") -> None:
        """Sends facts, evidence and the window's end, once."""
        if self.finished or not self.measuring:
            return
        self.finished = True
        if not complete and self.clock.total_steps:
            self.clock.flush()
        for observe in self.observers:
            observe()
        self.metrics.send_logged()
        if not self.request.config:
            self.facts.module_hashes = self._modules.hashes()
        if self._own_steps or self._reported.any:
            counts = self.samples_are_reported and self.clock.counts_samples
            self.facts.unit = "samples" if counts else "steps"
        self._tell_of_lost_samples()
        self._leave_out_unwatched()
        self.facts.left_out.update(self.knobs.kept_by_script)
        self.options.observe()
        self.facts.as_written.update(self.knobs.trainer_options)
        self.recorder.emit(self.facts.record(self.clock, self._suggestions))
        self.recorder.emit(WindowEnd(complete, why))

    def _tell_of_lost_samples(self) -> None:
        """A trial that is counted in steps can't be held against a baseline that was counted in samples."""
        if not self._samples_may_come() or not self.clock.total_steps or self.ended_badly:
            return
        why = self._reported.lack
        if self.request.knowledge.unit:
            self.fail("unsupported", f"its samples can't be counted as those of the script as written: {why}")
        else:
            self.facts.remark(f"steps are counted, and not samples: {why}")

    def _leave_out_unwatched(self) -> None:
        """Knobs that nobody can turn here, since the watch that they belong to was switched off."""
        facts = self.facts
        for watch in self.request.without:
            for knob in KNOBS_OF.get(watch, ()):
                if knob not in facts.as_written or knob in facts.left_out:
                    facts.left_out[knob] = f"the watch {watch!s} is off"


def _watchdog() -> None:
    time.sleep(STOP_GRACE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_current.exit_code if _current is not None else 0)


_current: Session | None = None


def current() -> Session | None:
    """The process's session, if it has one."""
    return _current


def begin(session: Session) -> None:
    """Makes the session the process's own."""
    global _current
    _current = session
