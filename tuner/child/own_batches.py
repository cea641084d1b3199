"""The samples of batches that a loop makes by itself, told by the rows that are seen to reach its model; no framework.

The *stated* batch size (what an argument or a question of the script says) is what a whole batch is meant to hold. The
last slice of an epoch holds less, and a batch larger than the data is the data. So what reaches the model is counted:
the adapter tells, of each *pass* (a gradient on a batch), the sizes of the arrays that the model was called with.

Which dimension of which array holds the samples isn't known: models take them first, second or flattened, and graphs
hold nodes. A place is *proven* where it holds the stated size, or the same multiple of it, in most passes, or in all
passes of a step together, and hardly ever more than that. What the baseline proved is counted in every trial.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .counts import RowPlace
from .evidence import Finding
from .option_names import is_named
from .records import Evidence
from .session import Session

Spot = tuple[str, int, int]
"""What was called, the number of an array among those that it was given, and one of that array's dimensions."""
Sizes = Mapping[Spot, int]
"""How long each of them was in one pass, in the order in which they were seen."""
KNOB = "batch_size"
UNTOLD = "nothing tells how many a batch holds; tuner.report(step=n, samples=m) can"
WHOLE_SHARE = 0.4
"""Of the slices of data of any length at least half are whole ones, where the batch isn't larger than the data."""
EXCESS_SHARE = 0.05
FEWEST_PASSES = 5
"""A place is given up after so many passes at the earliest."""
MISSED_SHARE = 0.1
MOST_PLACES = 32
ALIKE = 0.005
"""Places are alike whose counts lie no further apart than this share."""


@dataclass
class _Tally:
    """What one place held. ``whole``: passes with the stated size; ``excess``: with more than that."""

    place: RowPlace
    passes: int = 0
    whole: int = 0
    excess: int = 0
    steps: int = 0
    whole_steps: int = 0
    samples: float = 0.0
    of_step: float = 0.0
    sizes: Counter[float] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.spot = self.place.call, self.place.array, self.place.dimension

    def add(self, rows: int, stated: int) -> float:
        """Counts a pass; returns its samples."""
        samples = rows / self.place.rows_per_sample
        self.passes += 1
        self.whole += samples == stated
        self.excess += samples > stated
        self.samples += samples
        self.of_step += samples
        self.sizes[samples] += 1
        return samples

    def step_ends(self, stated: int) -> None:
        """Counts a step."""
        self.steps += self.of_step > 0
        self.whole_steps += self.of_step == stated
        self.of_step = 0.0

    @property
    def is_proven(self) -> bool:
        """Whether it holds what is stated in most passes, or in most steps."""
        if not self.passes:
            return False
        share = max(self.whole / self.passes, self.whole_steps / max(1, self.steps))
        return share >= WHOLE_SHARE and self.excess <= EXCESS_SHARE * self.passes

    @property
    def usual(self) -> float:
        """Samples of most of its passes."""
        return self.sizes.most_common(1)[0][0] if self.sizes else 0.0


class OwnBatches:
    """Counts the passes of one trial, and says what they prove.

    ``changes``: how often another place came to be counted. ``passes``, ``steps``: those of which a batch size was
    stated.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.changes = 0
        self.passes = 0
        self.steps = 0
        self._known = session.request.knowledge.row_places
        self._tallies = {place: _Tally(place) for place in self._known}
        self._given_up: set[RowPlace] = set()
        self._chosen: _Tally | None = None
        self._stated = 0
        self._missed = 0
        self._of_step: Counter[Spot] = Counter()
        self._passes_of_step = 0
        self._begun = self._counted = False
        self._given: Counter[int] = Counter()

    @property
    def is_wanted(self) -> bool:
        """Whether what reaches the model is of use: only where the script states what a batch is meant to hold."""
        return self.session.measuring and self.session.stated_batch_size() > 0

    # while it trains

    def passed(self, sizes: Sizes, times: int | Sizes = 1) -> None:
        """A gradient was taken on a batch of such sizes; ``times``: so many such batches are in one call, by place."""
        stated = self.session.stated_batch_size()
        if stated <= 0:
            return
        self._stated = stated
        self.passes += 1
        self._begun = True
        if not sizes:
            return  # another gradient of the same calls; or of what isn't seen, if that is all that the step has
        self._passes_of_step += 1
        self._of_step.update(sizes)
        self._given[next(iter(sizes.values()))] += 1
        if not self._known:
            self._find(sizes)
        held = {
            tally.place: tally.add(sizes[tally.spot], stated) for tally in self._tallies.values() if tally.spot in sizes
        }
        self._choose()
        samples = held.get(self._chosen.place) if self._chosen is not None else None
        if samples is not None and self._chosen is not None:
            self._count(samples * (times if isinstance(times, int) else times.get(self._chosen.spot, 1)))

    def _count(self, samples: float) -> None:
        self._counted = True
        self.session.clock.add_samples(samples, 0.0)

    def step_ends(self) -> None:
        """An optimizer step is about to be counted: it was taken on the passes since the last one."""
        if not self._begun:
            return
        for tally in self._tallies.values():
            tally.step_ends(self._stated)
        if self._chosen is None and not self._known and self._passes_of_step > 1:
            self._find_in_parts()
        self.steps += 1
        self._missed += not self._counted
        self._begun = self._counted = False
        self._of_step.clear()
        self._passes_of_step = 0

    def _find(self, sizes: Sizes) -> None:
        """Places that hold what is stated, or, flattened, a multiple of it."""
        for (call, array, dimension), rows in sizes.items():
            if rows == self._stated or (dimension == 0 and rows > 0 and rows % self._stated == 0):
                self._add(RowPlace(call, array, dimension, rows // self._stated))

    def _find_in_parts(self) -> None:
        """A script that splits its batch gives the model what is stated in all of a step's passes together."""
        for (call, array, dimension), rows in self._of_step.items():
            tally = self._add(RowPlace(call, array, dimension)) if rows == self._stated else None
            if tally is not None:
                tally.passes, tally.steps, tally.whole_steps, tally.samples = self._passes_of_step, 1, 1, rows
                tally.sizes[rows / self._passes_of_step] += self._passes_of_step
        self._choose()
        if self._chosen is not None:
            self._count(self._chosen.samples)

    def _add(self, place: RowPlace) -> _Tally | None:
        if place in self._tallies or place in self._given_up or len(self._tallies) >= MOST_PLACES:
            return None
        tally = self._tallies[place] = _Tally(place)
        return tally

    def _choose(self) -> None:
        """What is counted from here on. Of what the baseline proved it is the first that holds what is stated."""
        if self._known:
            seen = [tally for tally in self._tallies.values() if tally.passes]
            chosen = next((tally for tally in seen if tally.is_proven), seen[0] if seen else None)
        else:
            refuted = [t.place for t in self._tallies.values() if t.passes >= FEWEST_PASSES and not t.is_proven]
            for place in refuted:
                del self._tallies[place]
                self._given_up.add(place)
            # What was given once, such as a model that is frozen and as long as a batch, holds none.
            usual = [t for t in self._tallies.values() if 3 * t.passes > self.passes]
            chosen = min(usual or self._tallies.values(), key=_rank, default=None)
        if chosen is not self._chosen:
            self.changes += self.passes > 1
            self._chosen = chosen

    # what was seen

    @property
    def counts(self) -> bool:
        """Whether the samples were counted."""
        chosen = self._chosen
        if chosen is None or self._missed > MISSED_SHARE * self.steps:
            return False
        # Where a sample has several rows, another number of rows may be one of longer samples.
        return chosen.is_proven or (bool(self._known) and chosen.place.rows_per_sample == 1)

    def observe(self) -> None:
        """Facts, and evidence of the batch size, where the loop made its batches by itself."""
        session, chosen = self.session, self._chosen
        if not self.passes:
            self.hint()
        if not self.passes or session.samples_are_reported:
            return
        counts = self.counts
        if counts and chosen is not None:
            session.facts.row_places = list(self._known or self._alike(chosen))
        if KNOB in session.knobs.requested:
            session.knobs.report(KNOB, self._finding(chosen if counts else None))
        elif not counts and session.request.knowledge.unit == "samples":
            session.fail("unsupported", f"its samples can't be counted as those of the script as written: {self._why}")
        elif not counts:
            session.facts.remark(f"steps are counted, and not samples: {self._why}")

    @property
    def untold(self) -> str:
        """Why samples aren't counted where nothing else does it either; "" where ``observe`` says why."""
        if self.passes or self.session.samples_are_reported:
            return ""
        return UNTOLD

    def hint(self) -> None:
        """Tells how to have the samples counted, where the script has an option that may state what a batch holds."""
        session, (option, size) = self.session, _option(self.session)
        if not session.is_as_written or KNOB in session.knobs.arguments or session.counts_its_steps:
            return
        if type(size) is int and size > 0 and not (session.clock.total_samples or session.stated_batch_size()):
            session.facts.remark(
                f"if {option[:-1]} is what a batch holds, bind it: with {bound(session)} among the script's "
                "arguments samples are counted, and other batch sizes can be tried"
            )

    def _alike(self, chosen: _Tally) -> list[RowPlace]:
        """The place that was counted, and others that held as much: another batch size may show which one it is."""
        proven = sorted((tally for tally in self._tallies.values() if tally.is_proven), key=_rank)
        near = [tally.place for tally in proven if abs(tally.samples - chosen.samples) <= ALIKE * chosen.samples]
        return list(dict.fromkeys([chosen.place, *near]))

    def _finding(self, chosen: _Tally | None) -> Finding:
        if chosen is None:
            return Finding(Evidence.CONTRADICTED, self._why, None, 0, 0)
        if chosen.is_proven:
            size = self.session.knobs.requested[KNOB]
            return Finding(Evidence.VERIFIED, f"whole batches hold {self._stated} samples", size, 0, 0)
        reason = f"its batches hold {chosen.usual:g} samples, and not the {self._stated} that it was told"
        return Finding(Evidence.CONTRADICTED, reason, chosen.usual, 0, 0)

    @property
    def _why(self) -> str:
        """Why samples can't be counted."""
        rows = self._given.most_common(1)[0][0] if self._given else 0
        given = f"its model is mostly given {rows} rows" if rows else "what its model is given isn't seen"
        return f"batches are said to hold {self._stated} samples, and {given}"


def _rank(tally: _Tally) -> tuple[int, bool, int]:
    """The likeliest place first: one row a sample, whole in single passes, the first dimension, the first seen."""
    return tally.place.rows_per_sample, not tally.whole, tally.place.dimension


def bound(session: Session) -> str:
    """How the script's option for the size of a batch is bound, or one of such a script's where none is seen."""
    option, size = _option(session)
    return f"{option}{{{KNOB}={size}}}" if type(size) is int and size > 0 else f"--batch-size={{{KNOB}}}"


def _option(session: Session) -> tuple[str, object]:
    """An option that is called as the knob is, up to its value, and that: its parser's, or one among the
    arguments of a script that reads these by itself, in one word or in two; none is "".
    """
    options, argv = session.options, session.request.argv
    if options.value(KNOB) is not None:
        flag = options.flag(KNOB)
        sign = "" if flag.endswith("=") else "=" if flag.startswith("--") else " "  # Hydra's have theirs
        return f"{flag}{sign}", options.value(KNOB)
    for argument, following in zip(argv, [*argv[1:], ""], strict=False):
        flag, sign, value = argument.partition("=")
        if flag.startswith("--") and is_named(flag[2:], KNOB) and (value if sign else following).isdecimal():
            return f"{flag}{sign or ' '}", int(value if sign else following)
    return "", None
