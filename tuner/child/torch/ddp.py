"""DistributedDataParallel: its options where the config turns them, read back from the reducer that acts on them."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..applied import Effect
from ..evidence import Finding
from ..patches import patch
from ..records import Evidence, Value
from ..session import Session
from . import buckets
from .buckets import MIB
from .layer_looks import lay_channels_last
from .types import DistributedModule, Tensor

STATIC_GRAPH, BUCKET_VIEW = "ddp_static_graph", "ddp_bucket_view"
BUCKET_MB, COMMUNICATION = "ddp_bucket_mb", "ddp_communication"
OPTIONS: Mapping[str, str] = {
    STATIC_GRAPH: "static_graph", BUCKET_VIEW: "gradient_as_bucket_view", BUCKET_MB: "bucket_cap_mb",
}  # fmt: skip
"""Knob → the option of DistributedDataParallel that it is."""
KNOBS = (*OPTIONS, COMMUNICATION)
LAYOUT = "channels_last"
"""A knob of the model, which has to lie so as it is wrapped."""
PLAIN, BF16 = "default", "bf16"
"""Values of ``COMMUNICATION``: gradients are averaged as they are, or rounded to bfloat16 before."""
NOT_MADE = "no DistributedDataParallel trains"
NOT_SHOWN = "DistributedDataParallel doesn't show it here"
OWN_HOOK = "the script registers a communication hook of its own"
OWN_BUCKETS = "the script sizes each bucket by itself (bucket_cap_mb_list)"
NO_SEARCH = "find_unused_parameters is off: no graph is searched that could be static"
CHANGES = "which parameters are unused changes from step to step"
DEFERS = "the script leaves out the exchange in some backwards (no_sync), with which a static graph fails"
KEEPS = "the script keeps gradients of earlier steps, which views of buckets would be written over"
JOINS = "ranks without batches go on in company (join), which counts on the exchange as it is"
COARSE = "its gradients have 16 bits as they are"
DIFFER = "its models are made with different values of it"
SAME_BUCKETS = "it makes the same buckets of gradients as the script's own size"
DEFAULT_MB = 25
_OWN_SIZES = "bucket_cap_mb_list"
_HOOK = "bf16_compress"
"""Ours. PyTorch's own is refused by its name where there is no NCCL, also for gloo, which averages bfloat16."""
_SIXTEEN_BITS = ("BFloat16", "Half")
_MOST_SEEN = 256
_LOOKED_AT, _LOOKS = 8, 64
"""So many gradients are looked at, after so many backwards."""


class KeptGradients:
    """Whether the script holds gradients of earlier steps: as views of buckets they would be those of the newest one.

    ``found``: it holds several, or has them lie in memory of its own. One may be what a variable of a loop happens to
    hold.
    """

    def __init__(self) -> None:
        self.found = False
        self._noted: list[tuple[weakref.ref[Tensor], Any]] = []

    def look(self, parameters: Iterable[Tensor]) -> None:
        """A backward has ended: is memory of the gradients before alive, though their parameters have other by now?"""
        from torch.multiprocessing.reductions import StorageWeakRef

        if self.found:
            return
        held = 0
        for parameter, storage in self._noted:
            if (p := parameter()) is not None and not storage.expired():
                held += p.grad is None or StorageWeakRef(p.grad.untyped_storage()) != storage
        with_gradient = [(p, p.grad) for p in parameters if p.grad is not None and not p.grad.is_sparse]
        larger = sum(g.untyped_storage().nbytes() > g.numel() * g.element_size() for _, g in with_gradient)
        self.found = held > 1 or larger > 1
        step = max(1, len(with_gradient) // _LOOKED_AT)
        self._noted = [(weakref.ref(p), StorageWeakRef(g.untyped_storage())) for p, g in with_gradient[::step]]


@dataclass
class _Made:
    """One such module. ``given``: option → what the script gives it, or leaves it as; ``turned``: what the config does.

    ``shown``: what it said of itself at last, by PyTorch's names. ``compressed``: buckets that our hook has averaged.
    ``failed``: why it has no hook of ours. ``changes``: whether its unused parameters do from step to step.
    ``exchanged``: the gradients that it exchanges, in the order of its parameters, where the config sizes buckets.
    """

    module: weakref.ref[DistributedModule]
    given: Mapping[str, Any]
    turned: Mapping[str, Any]
    shown: Mapping[str, Any] = field(default_factory=dict)
    compressed: int = 0
    failed: str = ""
    changes: bool = False
    kept: KeptGradients = field(default_factory=KeptGradients)
    exchanged: Sequence[buckets.Gradient] = ()
    _used: list[bool] = field(default_factory=list)

    def look(self) -> None:
        """Reads what its reducer says, while it lives. One that has none says nothing."""
        module = self.module()
        if module is not None and getattr(module, "logger", None) is not None:
            self.shown = module._get_ddp_logging_data()

    def note_unused(self) -> None:
        """A backward has ended: which parameters did any rank use in it, where they are looked for in each step?

        It tells by itself that they have changed, but only once in a process, of whichever such module is first.
        """
        module = self.module()
        if module is not None and module.find_unused_parameters and not module.static_graph:
            used = [count > 0 for count in module.reducer._get_local_used_map().tolist()]
            self.changes |= bool(self._used) and used != self._used
            self._used = used

    @property
    def trains(self) -> bool:
        """Whether it has exchanged gradients with other ranks, by the number of steps that it tells of."""
        return bool(self.shown.get("iteration", 0) >= 1 and self.shown.get("world_size", 1) > 1)

    @property
    def has_own_hook(self) -> bool:
        """Whether the script has registered a communication hook."""
        return self.shown.get("comm_hook", "") not in ("", _HOOK)

    def observed(self, knob: str) -> Value | None:
        """What is at work, in the words of the knob; None where nothing shows it."""
        shown = self.shown
        if knob == COMMUNICATION:
            return BF16 if self.compressed else PLAIN
        if knob == STATIC_GRAPH:  # nothing is said where it isn't
            return bool(shown.get("static_graph", 0)) if shown else None
        if knob == BUCKET_VIEW:
            return bool(shown["gradient_as_bucket_view"]) if "gradient_as_bucket_view" in shown else None
        limit = shown.get("bucket_cap_bytes")
        if limit is None or OPTIONS[BUCKET_MB] not in self.turned:
            return None if limit is None else _in_mib(limit)
        made, gradients = buckets.sizes(shown), buckets.in_order(self.exchanged, shown)
        if not made or not gradients:
            return None
        return _in_mib(limit) if buckets.keep_to(limit, made, gradients) else round(max(made) / MIB, 2)

    @property
    def has_own_buckets(self) -> bool:
        """Whether the script's own size would make the same buckets."""
        own, made = self.given[OPTIONS[BUCKET_MB]], buckets.sizes(self.shown)
        gradients = buckets.in_order(self.exchanged, self.shown)
        limits = [buckets.FIRST, DEFAULT_MB * MIB] if own is None else [int(own * MIB)]
        return bool(gradients) and sorted(buckets.made_by(limits, gradients)) == sorted(made)

    def written(self, knob: str, *, turned: bool) -> Value | None:
        """The script's own value: what is at work, or what the script gives where the config has ``turned`` it."""
        if knob == COMMUNICATION:
            return PLAIN
        given: Value | None = self.given[OPTIONS[knob]]
        if not turned:
            return self.observed(knob)
        return DEFAULT_MB if given is None and knob == BUCKET_MB else given


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without what is said to who asks for a static graph and for a search: the script asks for one of them only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You passed find_unused_parameters=true")
        yield


def _in_mib(size: int) -> int | float:
    return size // MIB if size % MIB == 0 else size / MIB


class DdpWatch:
    """Patches the making of such modules; their reducers tell the rest."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.session = session
        self.torch = torch
        self._made: list[_Made] = []
        self._defers = self._joins = False
        self._looks = _LOOKS

    def install(self) -> None:
        """Patches what shows how several ranks exchange gradients, or turns it; in other trials nothing."""
        wanted = [knob for knob in (*KNOBS, LAYOUT) if self.session.knobs.wants(knob)]
        if not wanted and not (self.session.measuring and self.session.ranks > 1):
            return
        parallel = self.torch.nn.parallel.DistributedDataParallel
        patch(parallel, "__init__", self._init)
        if COMMUNICATION in wanted:
            patch(parallel, "_lazy_init", self._lazy_init)

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)
        defaults = {
            name: signature.parameters[name].default if name in signature.parameters else None
            for name in (*OPTIONS.values(), _OWN_SIZES)
        }

        def __init__(wrapper: DistributedModule, /, *args: Any, **kwargs: Any) -> None:
            if not self.session.here:
                original(wrapper, *args, **kwargs)
                return
            try:
                bound = signature.bind(wrapper, *args, **kwargs)
            except TypeError:
                original(wrapper, *args, **kwargs)  # which says what is wrong with the call
                return
            self._lay(bound.arguments["module"])
            given = {name: bound.arguments.get(name, default) for name, default in defaults.items()}
            bound.arguments.update(turned := self._turned(given))
            with _unwarned() if turned.get(OPTIONS[STATIC_GRAPH]) else nullcontext():
                original(*bound.args, **bound.kwargs)
            if len(self._made) < _MOST_SEEN:
                made = _Made(weakref.ref(wrapper), given, turned)
                if OPTIONS[BUCKET_MB] in turned:
                    made.exchanged = buckets.gradients_of(wrapper)
                self._made.append(made)

        return __init__

    def _lay(self, module: Any) -> None:
        """Lays weights as the config wants them before buckets are made. A reducer writes gradients there by the layout
        that weights have then, and reads them by the one that they have by now: where these differ it mixes them up.

        Of a module that convolves nowhere as well: it may be a part of one that does, and is laid with that.
        """
        nn = self.torch.nn
        if isinstance(module, nn.Module) and self.session.knobs.wanted(LAYOUT):
            lay_channels_last(self.torch, module)

    def _turned(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that the config sets; where the script sizes each bucket by itself it goes on to."""
        knobs = self.session.knobs
        turned = [knob for knob in OPTIONS if knobs.wants(knob) and not (knob == BUCKET_MB and given[_OWN_SIZES])]
        return {OPTIONS[knob]: knobs.wanted(knob) for knob in turned}

    def _lazy_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """Called before the first forward: by then a script has registered the hook that it has, if any."""

        def _lazy_init(wrapper: DistributedModule) -> None:
            original(wrapper)
            if self.session.here and self.session.knobs.wanted(COMMUNICATION) == BF16:
                for made in self._made:
                    if made.module() is wrapper:
                        self._compress(made, wrapper)

        return _lazy_init

    def _compress(self, made: _Made, wrapper: DistributedModule) -> None:
        """Has gradients averaged in bfloat16, unless the script has a hook of its own."""
        try:
            made.look()
            if not made.has_own_hook:
                wrapper.register_comm_hook(wrapper.process_group, self._hook_of(made))
        except Exception as error:  # an applied run trains on without it
            made.failed = f"{type(error).__name__}: {error}"
            self.session.note(f"{COMMUNICATION}: {made.failed}")

    def _hook_of(self, made: _Made) -> Callable[..., object]:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        def bf16_compress(state: object, bucket: object) -> object:
            made.compressed += 1
            return default_hooks.bf16_compress_hook(state, bucket)

        # PyTorch reads both: the types of what it takes and gives, and the name that it tells.
        bf16_compress.__annotations__ = {}
        bf16_compress.__qualname__ = _HOOK
        return bf16_compress

    # while it trains

    def called(self) -> None:
        """A module is called to train, outermost: are such modules within ``no_sync`` or ``join`` now?"""
        for made in self._made:
            wrapper = made.module()
            if wrapper is None:
                continue
            held = vars(wrapper)
            self._defers |= held.get("require_backward_grad_sync") is False
            self._joins |= bool(getattr(held.get("_join_config"), "enable", False))

    def backward_ran(self) -> None:
        """One of the first backwards of the script as written has ended: what of it would train otherwise?"""
        if not self._made or not self._looks or not self.session.is_as_written:
            return
        self._looks -= 1
        for made in self._made:
            wrapper = made.module()
            with suppress(Exception):  # no part of its interface
                if wrapper is not None and not wrapper.gradient_as_bucket_view:
                    made.kept.look(wrapper.parameters())
                made.note_unused()

    def block_ended(self) -> None:
        """Reads what such modules say of themselves: at the script's end they may be gone."""
        for made in self._made:
            made.look()

    def _trained(self) -> list[_Made]:
        self.block_ended()
        return [made for made in self._made if made.trains]

    # what is told

    def written(self) -> None:
        """The facts of the script's own options, where several ranks exchange gradients by such modules."""
        trained, facts, knobs = self._trained(), self.session.facts, self.session.knobs
        if self.session.ranks == 1 or not trained:
            return
        for knob in KNOBS:
            values = [made.written(knob, turned=knobs.wants(knob)) for made in trained]
            facts.as_written[knob] = values[0]
            why = DIFFER if len({*values}) > 1 else self._obstacle(knob, trained)
            if why:
                facts.left_out[knob] = why
        facts.gradient_bytes = max(int(made.shown.get("total_parameter_size_bytes", 0)) for made in trained) or None

    def _obstacle(self, knob: str, trained: Sequence[_Made]) -> str:
        """Why the knob can't be turned in this script, or ""."""
        own = _kept_by_script(knob, trained)
        if own or knob == BUCKET_MB:
            return own
        if knob == BUCKET_VIEW:
            return KEEPS if any(made.kept.found for made in trained) else ""
        if self._joins:
            return JOINS
        if knob == COMMUNICATION:
            dtypes = {name for made in trained for name in str(made.shown.get("dtypes", "")).split(", ")}
            return COARSE if all(name.endswith(_SIXTEEN_BITS) for name in dtypes) else ""
        if not all(made.shown.get("find_unused_parameters", 0) for made in trained):
            return NO_SEARCH
        if self._defers:  # parameters that are noted as used are then those of several backwards, or of none
            return DEFERS
        changes = any(made.changes or made.shown.get("can_set_static_graph", 1) == 0 for made in trained)
        return CHANGES if changes else ""

    def report(self) -> None:
        """Evidence of each of these knobs that the config asks for."""
        asked = [knob for knob in KNOBS if knob in self.session.knobs.requested]
        trained = self._trained() if asked else []
        for knob in asked:
            self._report(knob, trained)

    def _report(self, knob: str, trained: Sequence[_Made]) -> None:
        knobs, own = self.session.knobs, _kept_by_script(knob, trained)
        seen = [made.observed(knob) for made in trained]
        changed = sum(value == knobs.requested[knob] for value in seen)
        if not own and knob == BUCKET_MB and trained and all(made.has_own_buckets for made in trained):
            own = SAME_BUCKETS
        if not trained or own:
            knobs.inapplicable(knob, own or NOT_MADE, sites=len(trained))
        elif None in seen:
            knobs.report(knob, Finding(Evidence.UNVERIFIABLE, NOT_SHOWN, sites=len(seen), changed=changed))
        else:
            distinct = list(dict.fromkeys(seen))
            observed = distinct[0] if len(distinct) == 1 else ", ".join(map(str, distinct))
            knobs.compare(knob, observed, sites=len(seen), changed=changed, why=_failure(knob, trained))

    def effect(self, knob: str) -> Effect:
        """For an applied run: at how many of such modules the knob's value is at work."""
        self.block_ended()
        made = [each for each in self._made if each.shown]
        if not made:
            return Effect(0, "no DistributedDataParallel was made")
        if knob == BUCKET_MB and all(each.has_own_buckets for each in made):
            return Effect(0, SAME_BUCKETS)
        own, seen = _kept_by_script(knob, made), [each.observed(knob) for each in made]
        if not own and all(value is None for value in seen):
            return Effect(0, NOT_SHOWN, is_unseen=True)
        changed = sum(value == self.session.knobs.wanted(knob) for value in seen)
        return Effect(changed, own or _failure(knob, made) or f"the script set {seen[0]}")


def _kept_by_script(knob: str, made: Iterable[_Made]) -> str:
    """Why the script's own value stays, or ""."""
    if knob == COMMUNICATION:
        return OWN_HOOK if any(each.has_own_hook for each in made) else ""
    return OWN_BUCKETS if knob == BUCKET_MB and any(each.given[_OWN_SIZES] for each in made) else ""


def _failure(knob: str, made: Iterable[_Made]) -> str:
    """Why there is no hook of ours, or buckets are of another size than they were to be; else ""."""
    if knob == BUCKET_MB:
        largest = max((max(buckets.sizes(each.shown), default=0) for each in made), default=0)
        return f"its largest bucket holds {largest / MIB:.1f} MiB: DistributedDataParallel didn't keep to the size"
    return next((each.failed for each in made if each.failed), "") if knob == COMMUNICATION else ""
