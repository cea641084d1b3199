"""What the watch on DataLoaders saw, as facts of the script and as evidence of their knobs, whoever trains."""

from __future__ import annotations

from types import ModuleType

from ..own_batches import bound
from ..records import LoaderUse
from ..session import Session
from .loader import LoaderWatch
from .loader_places import LOADER_KNOBS, Loader
from .parts import KNOB as ACCUMULATION

NO_LOADER = "no DataLoader feeds the training steps"
FETCHED_BEFORE = f"{NO_LOADER}: what one gave was fetched before, and is trained on again or was looked at once"
UNBOUND = f"{NO_LOADER}: where the loop makes its batches, and the script has an option for their size, bind it, as in"
FETCHED_ONCE = "the loader is fetched once only: its batch is all the data"
SHARED_OUT = "each worker makes batches of its own share of the data, whose last ones are short or dropped"
LENGTHS_ALIKE = 1.01
"""Sequences vary in length where the longest batch has so many times the tokens a sample of the shortest one."""
DATA_CHANGE = "the script trains in turn on loaders that it makes at one place, and none of them stands for the others"
FEWEST_IN_TURN = 2
MADE_FOR_EACH = "the script makes a loader for each epoch: its workers end with it"
IN_TURN = "come in turn: a trial lasts some seconds, and its rate is that of those which it met"
FEWEST_BEFORE = 10
"""Steps on a loader that another one took over from, of which it is worth a word: a script may try a batch first."""
SELDOM = "another loader feeds fewer than half of the steps, and would keep its batches"


class LoaderFacts:
    """Reads the watch at the end of a trial."""

    def __init__(self, session: Session, torch: ModuleType, loaders: LoaderWatch) -> None:
        self.session = session
        self.torch = torch
        self.loaders = loaders
        self.sources = loaders.sources

    def data_change(self) -> bool:
        """Whether loaders train in turn, all made at one place: ever new ones, or one a client.

        Most of their batches feed a gradient. Of validation each may lie in a gap, but a training batch comes after it.
        """
        primary, training = self.sources.primary, self.sources.training()
        there = [each for each in self._in_turn() if primary is not None and each.stack == primary.stack]
        return len([each for each in there if each not in training]) >= FEWEST_IN_TURN

    def _in_turn(self) -> list[Loader]:
        """Loaders most of whose batches were trained on without one of the primary loader."""
        others = (each for each in self.sources if each is not self.sources.primary)
        return [each for each in others if each.fetches > 1 and 2 * each.fed >= each.fetches]

    def written(self) -> None:
        """Facts of the data, and what the script wrote of each knob, or why it can't be turned."""
        facts, primary = self.session.facts, self.sources.primary
        facts.training_loaders = [loader.key for loader in self.sources.training()]
        facts.loaders = [LoaderUse(x.key, x.fetches, x.made, x.first) for x in self.sources]
        facts.dataset_len = primary.dataset_len if primary is not None else None
        self._written_data(primary)
        self._written_loader(primary)

    def _written_data(self, primary: Loader | None) -> None:
        facts = self.session.facts
        if primary is None:
            facts.hide_wait(NO_LOADER)
        elif self.sources.wait_is_hidden:
            facts.hide_wait("another thread fetches it from the loader")
        facts.epoch = self.loaders.epoch()
        if self.session.is_as_written:
            facts.batch_waits = self.sources.told_waits()
        if primary is not None and primary.tokens:
            facts.tokens_per_sample = primary.tokens / primary.samples
            facts.lengths_vary = primary.longest > LENGTHS_ALIKE * primary.shortest
            facts.written_tokens_per_sample = self.session.request.knowledge.tokens_per_sample

    def _written_loader(self, primary: Loader | None) -> None:
        facts = self.session.facts
        if primary is None or primary.fetches <= 1:
            reason = FETCHED_ONCE if primary is not None else FETCHED_BEFORE if self.sources.resigned else NO_LOADER
            facts.left_out.update(dict.fromkeys(LOADER_KNOBS, reason))
            if primary is None:
                facts.left_out["batch_size"] = f"{UNBOUND} -- {bound(self.session)}"
            return
        if self.data_change():
            facts.left_out.update(dict.fromkeys((*LOADER_KNOBS, ACCUMULATION), DATA_CHANGE))
            return
        if primary.is_made_for_each:
            primary.refused.setdefault("persistent_workers", MADE_FOR_EACH)
        facts.left_out.update(primary.refused)
        self._keep_sizes(primary)
        # Of a long stream's thousands of batches those few don't matter; epochs that end within seconds have few.
        if not primary.map_style and primary.later_starts:
            facts.left_out.setdefault("num_workers", SHARED_OUT)
        if primary.live.get("on_device"):
            facts.left_out["pin_memory"] = "the loader gives batches that are on the device already"
        for knob in LOADER_KNOBS:
            if primary.written[knob] is not None:
                facts.as_written[knob] = primary.written[knob]

    def _keep_sizes(self, primary: Loader) -> None:
        """Leaves the batch size out where not all loaders that feed the training would have it."""
        facts, training = self.session.facts, self.sources.training()
        in_turn = [loader for loader in self._in_turn() if loader.key in self.sources.fed_alone]
        sizes, own = [loader.written["batch_size"] for loader in training], primary.written["batch_size"]
        earlier = self.sources.replaced.values()
        before = [x for x in earlier if x.training_gaps - x.gaps_with[primary.key] >= FEWEST_BEFORE]
        there = {loader.written["batch_size"] for loader in (primary, *in_turn, *before)}
        told = " and of ".join(map(str, sorted(size for size in there if type(size) is int)))
        if " and " in told:
            facts.remark(f"steps on batches of {told} samples {IN_TURN}")
        if type(own) is int:
            facts.keep_sizes([size for size in sizes if type(size) is int], None if in_turn else own)
            if len(sizes) > 1 and {*sizes} == {own} and not in_turn:
                told = f"{len(sizes)} loaders with batches of {own} feed each step together"
                facts.remark(f"{told}: samples are those of one of them")
        kept = [loader.refused["batch_size"] for loader in training if "batch_size" in loader.refused]
        kept += [SELDOM for loader in in_turn if loader not in training]
        if kept:
            facts.left_out.setdefault("batch_size", kept[0])

    def evidence(self, knob: str, primary: Loader, size: object) -> None:
        """Of a knob of the loaders that train; ``size``: samples in one forward pass."""
        knobs = self.session.knobs
        if knobs.wants(knob) and knob in primary.refused:
            knobs.inapplicable(knob, primary.refused[knob])
        elif knob == "pin_memory" and not self.torch.cuda.is_available():
            knobs.inapplicable(knob, "there is no GPU to pin batches for")
        else:
            trains = self.sources.training()
            changed = sum(knob in loader.changed for loader in trains)
            seen = size if knob == "batch_size" else _seen_of_loader(primary, knob)
            knobs.compare(knob, seen, sites=len(trains), changed=changed)


def _seen_of_loader(loader: Loader, knob: str) -> object:
    return bool(loader.live.get("pinned")) if knob == "pin_memory" else loader.live.get(knob)
