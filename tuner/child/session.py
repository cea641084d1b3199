"""What a trial's process knows and has seen: the request, the recorder, the clock, the knobs' evidence."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from .evidence import Finding
from .knobs import Knobs
from .recorder import Recorder, StepClock
from .records import Evidence, plain_value

STOP_GRACE_S = 6.0
LEAVING_S = 5.0
"""Before its deadline a trial needs so much, or a tenth of its time, to write down what it saw and to leave."""


class StopTrial(BaseException):
    """Unwinds the user's script once the window is complete. Not an Exception: ``except Exception`` lets it by."""


class ClockHooks(Protocol):
    """What the clock asks of the framework that trains; see ``StepClock``."""

    def synchronize(self) -> None:
        """Waits until the device is done with all that it was given; called when a block ends."""

    def activity(self) -> int:
        """A number that changes with whatever a steady window must not hold: a compilation, a skipped fp16 step."""
        return 0

    def on_block(self) -> None:
        """Called after each block: the place to read what makes the device wait, such as the loss."""


class Session:
    """One trial, or one applied run (``mode`` "apply": knobs only, nothing measured)."""

    def __init__(self, request: dict[str, Any], recorder: Recorder) -> None:
        self.request = request
        self.recorder = recorder
        self.measuring = request.get("mode") != "apply"
        self.config: dict[str, Any] = dict(request.get("config") or {})
        self.knowledge: dict[str, Any] = dict(request.get("knowledge") or {})
        self.device: str = request.get("device", "cpu")
        self.folder: str = request.get("folder", "")
        self.seed: int | None = request.get("seed")
        self.probe: str = request.get("probe") or ""
        self.clock = StepClock(recorder, request.get("window") or {})
        # Data that are fetched once and trained on again and again were no measure of the baseline.
        self.clock.counts_samples = self.knowledge.get("unit") != "steps"
        self.started = float(request.get("spawned_monotonic") or time.monotonic())
        deadline_s = float(request.get("deadline_s") or math.inf)
        self._ends_by = self.started + deadline_s - min(LEAVING_S, deadline_s / 10)
        self._last_step = self.started
        self.stopped = False
        self.finished = False
        self.ended_badly = False
        self.window_reason = ""
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.as_written: dict[str, Any] = {}
        self.left_out: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self.suggestions: dict[str, Any] = {}
        self._reported: set[str] = set()
        self._logged: dict[str, tuple[float, float]] = {}
        self._reported_step = 0
        self._reported_samples = 0.0
        self.observers: list[Callable[[], None]] = []
        self.trainer_options: dict[str, Any] = {}
        self.read_options: Callable[[], None] = lambda: None
        self.option: Callable[[str], Any] = lambda knob: None
        self.on_quiet_end: Callable[[], None] = lambda: None
        self.on_leave: Callable[[], None] = lambda: None
        self.failed: set[str] = set()
        self.trained_by: str = self.knowledge.get("framework") or ""
        self._clock_hooks: dict[str, ClockHooks] = {}
        self.knobs = Knobs(recorder, self.config, self.knowledge.get("placeholders") or (), self._ended_early)
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """A forked loader worker runs the user's dataset; nothing in it may be recorded or stopped."""
        self.measuring = False
        self.stopped = False

    @property
    def here(self) -> bool:
        """Whether this is the process that the trial measures."""
        return os.getpid() == self.pid

    def attend(self, framework: str, hooks: ClockHooks, observe: Callable[[], None] | None = None) -> None:
        """The framework's adapter answers the clock, once its framework is the one that trains.

        ``observe`` is called once, when the window or the script has ended.
        """
        if framework in self._clock_hooks:
            return
        self._clock_hooks[framework] = hooks
        if observe is not None:
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
            self.clock.activity = hooks.activity
            self.clock.on_block = hooks.on_block

    def may_be_of(self, framework: str) -> bool:
        """Whether no other framework trains here: what this one's adapter sees is worth something."""
        return self.trained_by in ("", framework)

    def wants(self, knob: str) -> bool:
        """``knobs.wants``."""
        return self.knobs.wants(knob)

    def hand_over(self, knob: str) -> None:
        """``knobs.delegate``."""
        self.knobs.delegate(knob)

    def _ended_early(self) -> bool:
        """Whether the script ended before a knob could show."""
        return self.ended_badly or not self.clock.total_steps

    def suggest(self, name: str, default: Any) -> Any:
        """For ``tuner.suggested``."""
        self.suggestions[name] = default
        self.hand_over(name)
        return self.config.get(name, default)

    def told_batch_size(self) -> int:
        """Samples in one forward pass, as far as an argument or a question of the script tells; 0 where none does.

        Only where the baseline was counted in samples too: its rate is what the others are held against.
        """
        bound = "batch_size" in self.suggestions or "batch_size" in (self.knowledge.get("placeholders") or ())
        if not bound or self._reported_step or self.knowledge.get("unit", "samples") != "samples":
            return 0
        written = (self.knowledge.get("as_written") or {}).get("batch_size")
        told = (self.config.get("batch_size"), written, self.suggestions.get("batch_size"), self.option("batch_size"))
        return next((size for size in told if type(size) is int), 0)

    def report(self, metrics: dict[str, float]) -> None:
        """For ``tuner.report``."""
        step, samples = metrics.pop("step", None), metrics.pop("samples", None)
        for name, value in metrics.items():
            self._reported.add(str(name))
            self.recorder.emit("metric", name=str(name), value=float(value), samples=self.clock.total_samples)
        if step is not None and self.measuring and self.here:
            self._progressed(int(step), samples)

    def log(self, name: str, value: Any) -> None:
        """A metric that the script gives to a logger or a trainer: its last value is sent at the end.

        What the script reports itself under that name stands instead.
        """
        if not self.measuring or not self.here:
            return
        try:
            self._logged[name] = float(value), self.clock.total_samples
        except (TypeError, ValueError, RuntimeError):
            pass  # loggers take more than numbers: the text of a blob's name, a tensor of several values

    def _progressed(self, step: int, samples: float | None) -> None:
        """The script counts its own steps, which are taken where no step can be seen."""
        count = step - self._reported_step
        if count <= 0 or (self.clock.total_steps and not self._reported_step):
            return
        if samples is not None:
            self.clock.add_samples(samples - self._reported_samples, 0.0)
            self._reported_samples = samples
        self._reported_step = step
        self._step(count)

    def fail(self, reason: str, detail: str) -> None:
        """Records once that this config can't work, and ends the trial."""
        if reason not in self.failed and self.measuring:
            self.failed.add(reason)
            self.recorder.emit("failure", reason=reason, detail=detail)

    def loss(self, value: float) -> None:
        """The training loss as it is now. One that isn't finite ends the trial: such a config can't train."""
        self.recorder.emit("loss", samples=self.clock.progress, value=value)
        if not math.isfinite(value):
            self.fail("nan", f"the training loss became {value}")
            self.stop("the loss is not finite", complete=False)

    def note(self, text: str) -> None:
        """A line for people, recorded once."""
        if text not in self.failed:
            self.failed.add(text)
            self.recorder.emit("note", text=text)

    def remark(self, text: str) -> None:
        """What the script's author should know of it; the study tells it after the baseline, and in its report."""
        remarks: list[str] = self.facts.setdefault("remarks", [])
        if text not in remarks:
            remarks.append(text)

    def hide_wait(self, why: str) -> None:
        """Nothing shows when this loop waits for its data: that it seems never to isn't told."""
        self.facts["wait_is_unseen"] = True
        self.remark(f"the wait for data can't be seen: {why}")

    def step(self, framework: str, count: int = 1) -> None:
        """So many steps ended; called by the framework's adapter, outside of the script's own locks."""
        self.claim(framework)
        if self.may_be_of(framework) and not self._reported_step:
            self._step(count)

    def _step(self, count: int = 1) -> None:
        if self.stopped:
            raise StopTrial
        if self.clock.total_steps == 0:
            self.recorder.emit("first_step", seconds=time.monotonic() - self.started)
        if self.clock.step(count):
            self.stop("the window is complete")
        if self._is_late():
            self.stop("its time was up before its window was complete", complete=False)

    def _is_late(self) -> bool:
        """Whether the deadline may come before another step ends, with enough measured to be worth keeping."""
        now = time.monotonic()
        lasted, self._last_step = now - self._last_step, now
        return now + lasted > self._ends_by and self.clock.is_measurable

    def check_stop(self) -> None:
        """Raises again wherever a hook is reached: a script may have swallowed the first one."""
        if self.stopped and self.here and threading.get_ident() == self.thread:
            raise StopTrial

    def stop(self, why: str, *, complete: bool = True) -> None:
        """Writes what was seen, then unwinds the script; a watchdog ends a process that won't unwind."""
        if self.finished:
            return  # what is being written down says it already
        self.window_reason = why
        self.finish(complete=complete)
        self.stopped = True
        threading.Thread(target=_watchdog, daemon=True, name="autotune-watchdog").start()
        raise StopTrial

    def finish(self, *, complete: bool) -> None:
        """Sends facts, evidence and the window's end, once."""
        if self.finished or not self.measuring:
            return
        self.finished = True
        if not complete and self.clock.total_steps:
            self.clock.flush()
        for observe in self.observers:
            observe()
        for name, (value, samples) in list(self._logged.items()):
            if name not in self._reported:
                self.recorder.emit("metric", name=name, value=value, samples=samples)
        if self._reported_step:
            self.facts["unit"] = "samples" if self._reported_samples else "steps"
        self.left_out.update(self.knobs.kept_by_script)
        self.read_options()
        self.as_written.update(self.trainer_options)
        for name, value in self.suggestions.items():
            self.as_written[name] = value
            self.left_out.pop(name, None)
        self.recorder.emit(
            "facts", as_written=self.as_written, left_out=self.left_out, suggested=list(self.suggestions),
            steps=self.clock.total_steps, samples=self.clock.total_samples, **self.facts,
        )  # fmt: skip
        self.recorder.emit("window", complete=complete, why=self.window_reason)

    def knob(
        self, name: str, evidence: str, *, sites: int = 1, changed: int = 1, reason: str = "", observed: Any = None
    ) -> None:
        """``knobs.report``."""
        value = None if observed is None else plain_value(observed)
        self.knobs.report(name, Finding(Evidence(evidence), reason, value, sites, changed))


def _watchdog() -> None:
    time.sleep(STOP_GRACE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


_current: Session | None = None


def current() -> Session | None:
    """The process's session, if it has one."""
    return _current


def begin(session: Session) -> None:
    """Makes the session the process's own."""
    global _current
    _current = session
