"""The step clock: turns steps into blocks, and says when the steady window begins and ends. Seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

from .clock_limits import FILL_S, LONGEST_BLOCK, MOST_RESTARTS, STEPS_BETWEEN_WAITS
from .counted import Counted, Fetched
from .instruments import Instruments
from .precision import relative_half_width, stays_below
from .recorder import Recorder
from .records import Block, Phase, TrainingPause, Window
from .recurring import Recurring
from .turns import LEAD_IN_S, SHORT_STEP, TurnGiver
from .watch import Pause


class StepClock:
    """Groups steps into blocks: warm-up first, then the window, until it is precise enough or capped.

    ``synchronize`` waits for the device and is called once a block; ``asynchronous``: whether that takes a lead away
    from the script, so that a block holds several steps. ``activity`` is a number that changes
    whenever something happened that a steady window must not contain (a compilation, a skipped fp16 step).
    ``is_untold``: whether its samples have yet to be told of, for which it waits ``told_within`` times its length.
    ``ready`` gives the samples that lie ready for the loop, None where that can't be seen.
    ``is_filling``: whether a cache is being filled, which the window waits for, for so long at most as ``fill_s`` says.
    ``is_past``: whether what runs from here on is something else than what the window is to measure: that ends before.

    With ``turns`` the window is measured by turns of a block's length, and lasts until there are no more;
    ``on_held`` is told how many seconds it was held between two of them, which count nowhere, as their lead-in.

    Batches may be added by another thread than the one that steps; all else is for that one.
    A window ends early where its rate is hopeless: see ``stays_below``.
    What ``instruments`` are told to take of its steps is in no rate.
    """

    def __init__(
        self, recorder: Recorder, window: Window, *, synchronize: Callable[[], None] = lambda: None,
        activity: Callable[[], int] = lambda: 0, clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._recorder = recorder
        self._window = window
        self.synchronize = synchronize
        self.activity = activity
        self._clock = clock
        self.phase = Phase.WARMUP
        self.total_steps = self.min_window_steps = self._steps = self._phase_steps = self._last_activity = 0
        self.total_samples = self.told_samples = 0.0
        """``told_samples``: of all batches that were told of, whether they count or not."""
        self.is_untold: Callable[[], bool] = lambda: False
        self.told_within = 2
        self.counts_samples = True
        self.complete = self.asynchronous = self.ends_are_told = False
        self.on_block: Callable[[], None] = lambda: None
        self.ready: Callable[[], float | None] = lambda: None
        self.is_filling: Callable[[], bool] = lambda: False
        self.fill_s: Callable[[], float] = lambda: FILL_S
        self.is_past: Callable[[], bool] = lambda: False
        self.turns: TurnGiver | None = None
        self.on_held: Callable[[float], None] = lambda seconds: None
        self._turn_s = self._carried_s = 0.0
        self._stock_was_seen = self._steps_are_short = False
        self._lead_in_ends: float | None = None
        self._validating = self._has_resumed = self._may_train = self._any_block = False
        self.recurring = Recurring()
        self.instruments = Instruments(self._missed, clock)
        self._set_apart: set[object] = set()
        self._may_have_resumed: float | None = None
        self._phase_started = self._block_started = self._stepped = clock()
        self._counted, self._fetched = Counted(), Fetched()
        self._ready_at_start: float | None = None
        self._ready_at_resumption: float | None = None
        self._restarts = dict.fromkeys(MOST_RESTARTS, 0)
        self._blocks: list[tuple[float, float]] = []

    def start(self) -> None:
        """Called at the first step's end: what came before is start-up."""
        self.synchronize()
        if self._window.until_samples:
            self.on_block()  # the loss of weights that no step has changed
        self._phase_started = self._block_started = self._clock()
        self._counted, self._carried_s = Counted(), 0.0
        self._ready_at_start = self.ready()
        self._last_activity = self._seen_activity()

    def fetch_begins(self) -> None:
        """The training loader is asked for a batch: whether to train on it or to validate on it is known later."""
        if self._validating and self._may_have_resumed is None:
            self._may_have_resumed = self._clock()
            self._ready_at_resumption = self.ready()

    def add_samples(self, samples: float, wait_s: float, tokens: float = 0.0, start_s: float | None = None) -> None:
        """A batch of the training loader was fetched. It counts once a step has been taken on it.

        ``start_s``: an iteration began with it, which took so long until this batch had come; ``wait_s`` holds it too.
        """
        self.told_samples += samples
        if not self.counts_samples:
            samples = tokens = 0.0
        self._fetched.add(Counted(samples, tokens, wait_s, int(start_s is not None), start_s or 0.0))

    def settle(self, samples: float, wait_s: float) -> None:
        """What a graph has counted by itself since the last time; ``synchronize`` calls it before a block is closed."""
        self.told_samples += samples
        counted = Counted(samples if self.counts_samples else 0.0, wait_s=wait_s)
        if self._validating:
            # Counted since training resumed: it belongs to the step that ends now, not to what is set apart.
            self._fetched.settle(counted)
            return
        self._counted.add(counted)
        self.total_samples += counted.samples

    @property
    def now(self) -> float:
        """What it shows."""
        return self._clock()

    @property
    def holds_samples(self) -> bool:
        """Whether a batch was fetched that no step has been taken on yet."""
        return self._fetched.samples > 0

    def gradient_begins(self) -> None:
        """What was fetched so far is trained on by the step under way, whatever comes before its end."""
        self._fetched.trains()

    def evaluates(self, source: object, since: float) -> None:
        """As ``validation_begins``, of the newest batch: another one is fetched, and nothing was trained on it."""
        self._ready_at_resumption = self.ready()
        self.validation_begins(source, since=since)
        self._fetched.evaluated_on = not self._validating

    def iteration_begins(self) -> None:
        """The training loader begins anew: what it gave before that was evaluated on isn't trained on any more."""
        self._fetched.drop_evaluated()

    def validation_begins(self, source: object = None, *, fetched: bool = False, since: float | None = None) -> None:
        """Something that isn't training runs from here on: the time until training resumes is set apart.

        ``source`` is the module or loader that shows it; one that shows it with every step is part of the step. Where
        one batch is ``fetched``, and nothing else shows it, training resumes on that batch as well: another task's.
        It has run ``since`` then, where that is given.
        """
        if self.recurring.is_part_of_step(source, self.total_steps, self._set_apart):
            return
        if not self._validating:
            self.recurring.sets_apart(source, lambda: self.total_steps)
            self.instruments.interrupted()
            self._close_block(flagged=False, at=since, may_end_epoch=True)
            self._validating = True
            self._recorder.emit(TrainingPause(Pause.VALIDATION, begins=True))
        self._may_train = fetched and not (self._set_apart or self.recurring.is_validated_on(source))
        self._set_apart.add(source)
        self._fetched.validated_on = True
        self._may_have_resumed = None

    def was_training(self) -> None:
        """What ``validation_begins`` opened is part of the training, as its first call has shown."""
        self._fetched.validated_on = False
        self._has_resumed |= self._validating  # it has ended a block
        self._training_again()

    def training_resumes(self) -> None:
        """Ends the stretch that ``validation_begins`` opened, as of the fetch of the batch that is trained on now."""
        if self._validating and self._may_train:
            self.was_training()
        elif self._validating:
            self._close_block(flagged=True, at=self._may_have_resumed)
            self._training_again()
            self._has_resumed = True

    def flush(self) -> None:
        """Sends what is still open, until its last step: a script may end within a block, and do something else before.

        On a device that works behind its back nobody knows when that step ended: it doesn't count beside whole blocks.
        """
        self.instruments.interrupted()
        if self._validating or not self.asynchronous or not self._any_block:
            self._ready_at_resumption = self.ready()
            self._close_block(flagged=self._validating, at=None if self._validating else self._stepped)
        self._training_again()

    @property
    def validating(self) -> bool:
        """Whether time is being set apart at present."""
        return self._validating

    def step(self, count: int = 1) -> bool:
        """One step ended, or ``count`` since the last time. Returns True when the window is complete."""
        is_first = not self.total_steps
        self._stepped = self._clock()
        self.total_steps += count
        if self._may_have_resumed is not None or self._may_train:
            self.training_resumes()
        validated, self._has_resumed = self._has_resumed, False
        fetched = self._fetched.take()
        self._counted.add(fetched)
        self.total_samples += fetched.samples
        if is_first:
            self.start()
            return False
        self._steps += count
        self._phase_steps += count
        if self.instruments.is_under_way and not self._validating:
            self.instruments.stepped(count)  # in no block
            return self.complete
        if self._is_led_in():
            return self.complete
        if self._validating or self._is_long_enough(self._clock() - self._block_started + self._turn_s):
            self._close_block(flagged=self._validating)
            self._training_again()
            self._advance()
        elif validated:
            # Epochs shorter than a block end every block by their validation.
            self._advance()
        self._end_turn()
        return self.complete

    def _end_turn(self) -> None:
        """Waits for the next turn where this one was long enough, in training; at once where the window begins."""
        turns = self.turns
        if turns is None or self.complete or self.phase is not Phase.WINDOW or self._turn_s < self._length_s:
            return
        enough = self._is_enough(self._clock() - self._phase_started)
        held_s = turns.wait(enough=enough, whole=len(self._blocks) >= 3 and self._is_whole)
        self._turn_s, self._block_started = 0.0, self._block_started + held_s
        self._phase_started += held_s
        lead_in_s = turns.lead_in_s(stock=self._stock_was_seen, short=self._steps_are_short)
        if lead_in_s:
            self._lead_in_ends = self._clock() + lead_in_s
        if not self._steps:
            self._ready_at_start = self.ready()
        self.on_held(held_s)
        self.complete = turns.ended

    def _missed(self, count: int) -> None:
        """So many steps went without the instruments, of as many samples as those before: in no block."""
        samples = self.total_samples / max(1, self.total_steps) * count * self.instruments.counts_samples
        self.recurring.missed(count)
        self.total_steps += count
        self.total_samples, self.told_samples = self.total_samples + samples, self.told_samples + samples
        if not self.instruments.is_under_way:
            warm = self._phase_started, self._phase_steps  # which the loop has become meanwhile as well
            self._begin_block_anew()
            self._phase_started, self._phase_steps = warm

    def _is_led_in(self) -> bool:
        """Whether the step that ended belongs to the lead-in of a turn, which is nowhere counted."""
        if self._lead_in_ends is None or self._validating:
            return False
        if self._clock() >= self._lead_in_ends:
            self._begin_block_anew()
            self._lead_in_ends = None
        return True

    def _begin_block_anew(self) -> None:
        """Forgets the steps since the last block, and the time that they took."""
        self.synchronize()
        now = self._clock()
        self._phase_started += now - self._block_started
        self._phase_steps -= self._steps
        self._block_started, self._ready_at_start = now, self.ready()
        self._steps, self._counted, self._carried_s = 0, Counted(), 0.0

    @property
    def _length_s(self) -> float:
        """Of a block, and of the turn under way."""
        return self._window.block_s * (self.turns.stretch if self.turns is not None else 1.0)

    def _is_long_enough(self, seconds: float) -> bool:
        """Whether a block that is so long, with those before it in its turn, may end. By the script's own thread."""
        goes_on = self.asynchronous and self._steps < STEPS_BETWEEN_WAITS
        return seconds >= self._length_s * (LONGEST_BLOCK if goes_on else 1)

    def _training_again(self) -> None:
        if self._validating:
            self._recorder.emit(TrainingPause(Pause.VALIDATION, begins=False))
        self._validating = self._may_train = False
        self._may_have_resumed = None
        self._set_apart.clear()

    def _close_block(self, *, flagged: bool, at: float | None = None, may_end_epoch: bool = False) -> None:
        if (self._lead_in_ends is not None or self.instruments.is_under_way) and not flagged:
            self._begin_block_anew()
            return
        self.synchronize()
        flagged = flagged or self.is_past()
        now = self._clock() if at is None else at
        ready = self.ready() if at is None else self._ready_at_resumption
        self._stock_was_seen |= ready is not None
        if may_end_epoch and not (ready or self.ends_are_told):
            ready = None  # an epoch that has come to its end leaves nothing, however fast its loader is
        counted, seconds = self._counted, now - self._block_started
        if not (self._steps or flagged):
            # What an epoch's end costs (the fetch that finds no more data) belongs to the steps, not to validation.
            self._carried_s += max(0.0, seconds)
            self._block_started, self._ready_at_start = now, ready
            return
        seconds, self._carried_s = (seconds, self._carried_s) if flagged else (seconds + self._carried_s, 0.0)
        if seconds > 0:
            behind = counted.wait_s, self._ready_at_start, ready  # what the instruments may be hidden behind
            own_s = 0.0 if flagged else self.instruments.taken_of(seconds, self._steps, *behind)
            wait_s = min(counted.wait_s, seconds - own_s)
            block = Block(
                self.phase, self._steps, counted.samples, seconds - own_s, wait_s, flagged, self._ready_at_start, ready,
                counted.tokens, counted.starts, min(counted.start_s, wait_s), self.turns.current if self.turns else 0,
                instruments_s=own_s,
            )  # fmt: skip
            self._emit(block)
            self._any_block |= not flagged
            if self.turns is not None:
                self.turns.measured(block)
            if flagged:
                self._phase_started += seconds  # what was set apart is neither warm-up nor window
            elif self.phase is Phase.WINDOW:
                amount = counted.samples if self.total_samples else float(self._steps)
                self._blocks.append((amount, block.seconds))
                self._turn_s += seconds if self.turns is not None else 0.0
                # A lead-in that nothing asks for isn't worth a step that takes a good part of a turn.
                self._steps_are_short = seconds <= min(LEAD_IN_S, SHORT_STEP * self._window.block_s) * self._steps
            self.on_block()
        self._block_started, self._ready_at_start, self._steps, self._counted = now, ready, 0, Counted()

    def _advance(self) -> None:
        """Moves from warm-up to the window and from the window to its end."""
        now, activity = self._clock(), self._seen_activity()
        self.complete |= self.is_past()
        if activity != self._last_activity and self._restarts[self.phase] < MOST_RESTARTS[self.phase]:
            self._last_activity = activity
            self._restarts[self.phase] += 1
            self._enter(Phase.WARMUP, now)
        elapsed = now - self._phase_started
        if self.phase is Phase.WARMUP:
            enough = elapsed >= self._window.warmup_s and self._phase_steps >= self._window.warmup_steps
            slow = elapsed >= self._window.max_s and self._phase_steps >= 3  # ten steps of 10 s would cost too much
            fills = not self._window.until_samples and self.is_filling() and elapsed < self.fill_s()
            half = elapsed >= self._window.warmup_s / 2 and self._phase_steps >= self._window.warmup_steps
            waits = (self.turns is not None and self.turns.drains(elapsed)) or fills or not (half or slow)
            begun = not waits and self.instruments.begin(elapsed / max(1, self._phase_steps), self.synchronize)
            if (enough or slow) and not (waits or begun):
                self._enter(Phase.WINDOW, now)
        elif self._is_complete(elapsed):
            self.complete = True

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self._phase_started, self._phase_steps, self._blocks = now, 0, []
        begins = self.turns is not None and phase is Phase.WINDOW
        self._turn_s = LONGEST_BLOCK * self._window.block_s if begins else 0.0  # the first turn begins with the window

    def _is_hopeless(self) -> bool:
        """Whether the rate is sure to stay below what would be of use: the rest of the window would teach nothing."""
        # Of several ranks the bound is for all of them, and these blocks are its own.
        below = self._window.hopeless_below * self.progress / (self._trained_on() or 1.0)
        return below > 0 and not self.is_untold() and stays_below(self._blocks, below)

    @property
    def is_measurable(self) -> bool:
        """Whether the window gives a figure already, though not a precise one. A look at losses gives none."""
        return self.phase is Phase.WINDOW and len(self._blocks) >= 3 and not self._window.until_samples

    @property
    def progress(self) -> float:
        """Samples trained on, steps where samples can't be counted."""
        return self.total_samples or float(self.total_steps)

    def _emit(self, block: Block) -> None:
        self._recorder.emit(block)

    def _seen_activity(self) -> int:
        return self.activity()

    def _trained_on(self) -> float:
        return self.progress

    @property
    def _is_whole(self) -> bool:
        """Whether the window holds what it has to, however precise it is."""
        return self._phase_steps >= self.min_window_steps and not self.is_untold()

    def _is_enough(self, elapsed: float) -> bool:
        """Whether the window is long enough, however precise it is."""
        if elapsed < self._window.max_s or len(self._blocks) < 3:
            return False
        return self._is_whole or elapsed >= (self.told_within if self.is_untold() else 2) * self._window.max_s

    def _is_complete(self, elapsed: float) -> bool:
        until = self._window.until_samples
        if until:
            return self._trained_on() >= until
        if self._is_hopeless():
            return True
        if self.turns is not None:
            return False  # who gives them ends it
        if self._is_enough(elapsed):
            return True
        if len(self._blocks) < self._window.min_blocks or elapsed < self._window.min_s or not self._is_whole:
            return False
        return relative_half_width(self._blocks) <= self._window.target_half_width
