"""For ``autotune run``: at how many places the knobs of the profile were applied in PyTorch, and its steps counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial

from .. import allocator
from ..applied import AppliedRun, Effect
from ..evidence import SetBy
from ..patches import patch
from ..trajectory import KNOBS
from .attention import COMPILED, NOT_CALLED
from .checkpoints import NEITHER
from .compiling import NO_GRADIENT, NOT_COMPILED, REGIONAL, not_running
from .ddp import KNOBS as DDP_KNOBS
from .loader_places import LOADER_KNOBS, Loader
from .modules import EXACT, NOT_ROUNDED, ROUNDINGS
from .optimizers import implementations
from .own_compile import KNOB as OWN_MODE
from .taken_gradients import BY, watch_gradients, while_compiling
from .types import Optimizer, Result
from .watches import TorchWatches
from .xla_options import KNOBS as XLA_KNOBS

NO_LOADER = "no DataLoader was made"
OTHER_LOADERS = "the DataLoader that trained in the study isn't made any more"
UNKNOWN_LOADERS = "no DataLoader that is known to train, as one that shuffles, takes it"


def watch(watches: TorchWatches) -> None:
    """Has the applied run told of these watches' knobs, and of every step of an optimizer."""
    applied, torch = watches.session.applied, watches.torch
    if applied is None or not watches.session.request.config:
        return
    looks = AppliedKnobs(watches)
    applied.attend(looks.effects)
    if watches.session.knobs.wants("lr_scale"):
        _drop_rates_without_their_batch(looks)

    compiled = while_compiling(applied.trains)

    def step_ended(optimizer: Optimizer, args: object, kwargs: object) -> None:
        # Counting in a graph would have the graph compiled anew with each step.
        if torch.compiler.is_compiling():
            compiled()
        elif watches.session.may_be_of("torch"):
            watches.steps.rates.took_step(optimizer)
            applied.stepped()

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(step_ended)
    _watch_updates_by_hand(watches, applied)


def _watch_updates_by_hand(watches: TorchWatches, applied: AppliedRun) -> None:
    """Where the script makes no optimizer each backward is a step, as in a trial."""
    torch, steps = watches.torch, watches.steps
    patch(torch.optim.Optimizer, "add_param_group", steps.group_adding)

    def backward(original: Callable[..., Result]) -> Callable[..., Result]:
        def run(*args: object, **kwargs: object) -> Result:
            result = original(*args, **kwargs)
            if not torch.compiler.is_compiling() and not steps.optimizers:
                applied.trains()
            return result

        return run

    patch(torch.autograd, "backward", backward)  # not where fp16 has done it: that needs an optimizer
    _watch_gradients(watches, applied)


def _watch_gradients(watches: TorchWatches, applied: AppliedRun) -> None:
    """Where the script makes no optimizer, what it does with these gradients may be an update, or a picture of them."""

    def note() -> None:
        if not watches.steps.optimizers:
            applied.took_gradients(BY)

    watch_gradients(watches.torch, note)


def _drop_rates_without_their_batch(looks: AppliedKnobs) -> None:
    """Before the first step, when loaders are made, what becomes of the batch is known. Whether it is computed in parts
    isn't, nor does it matter: the parts make up the batch that the loader gives.
    """
    watches, knobs = looks.watches, looks.knobs
    written = watches.session.request.knowledge.as_written
    batch = [knob for knob in KNOBS if knobs.wants(knob) and knobs.wanted(knob) != written.get(knob)]
    waiting = bool(batch)

    def step_begins(optimizer: Optimizer, args: object, kwargs: object) -> None:
        nonlocal waiting
        if waiting and not watches.torch.compiler.is_compiling() and watches.session.here:
            waiting = False
            # What an argument, an option or a trainer sets by now is so.
            is_ours = any(map(knobs.wants, batch)) and knobs.set_by("batch_size") is SetBy.PATCH
            if not knobs.kept_by_script.keys().isdisjoint(batch) or (is_ours and not looks.whole_batch().sites):
                watches.steps.rates.drop()

    if batch:
        patch(watches.torch.optim.lr_scheduler.LRScheduler, "_initial_step", watches.steps.rates.schedule_made)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(step_begins)


class AppliedKnobs:
    """Reads the watches; nothing is patched for it."""

    def __init__(self, watches: TorchWatches) -> None:
        self.torch = watches.torch
        self.watches = watches
        self.knobs = watches.session.knobs
        self.loaders: Iterable[Loader] = watches.loaders.sources

    def effects(self) -> dict[str, Effect]:
        """Of each knob of the config that a patch of PyTorch applies."""
        looks: dict[str, Callable[[], Effect]] = {
            **{knob: partial(self.loader, knob) for knob in LOADER_KNOBS},
            **{knob: partial(self.watches.ddp.effect, knob) for knob in DDP_KNOBS},
            **{knob: partial(self.watches.xla_loaders.options.effect, knob) for knob in XLA_KNOBS},
            "batch_size": self._batch_size,
            "precision": self._precision,
            "compile": self._compile,
            OWN_MODE: self.watches.modules.own_compile.effect,
            "channels_last": self._channels_last,
            "optimizer": self._optimizer,
            "attention": self._attention,
            "checkpointing": self._checkpointing,
            "grad_accumulation": self._accumulation,
            "lr_scale": self._rate,
            "threads": lambda: self._setting("threads", self.torch.get_num_threads()),
            "allocator": lambda: self._setting("allocator", allocator.in_use(), allocator.NOT_LOADED),
            "cudnn_benchmark": lambda: self._setting("cudnn_benchmark", self.torch.backends.cudnn.benchmark),
        }
        return {knob: look() for knob, look in looks.items() if self.knobs.wants(knob)}

    def _setting(self, knob: str, observed: object, why: str = "") -> Effect:
        wanted = self.knobs.wanted(knob)
        return Effect(1) if observed == wanted else Effect(0, why or f"the script set {observed}")

    def loader(self, knob: str) -> Effect:
        """Of a knob of the loaders that train."""
        loaders, known = list(self.loaders), self.watches.loaders.sources.known
        trains = [loader for loader in loaders if loader.key in known or not known]
        changed = sum(knob in loader.changed for loader in trains)
        refused = [loader.refused[knob] for loader in trains if knob in loader.refused]
        if changed or refused:
            return Effect(changed, refused[0] if refused else "")
        return Effect(0, NO_LOADER if not loaders else OTHER_LOADERS if known else UNKNOWN_LOADERS)

    def _precision(self) -> Effect:
        wanted = self.knobs.wanted("precision")
        if wanted in ROUNDINGS:
            device = self.watches.session.device
            rounds = device.torch_rounding(self.torch).matmul
            if rounds and not device.torch_seen_rounding(self.torch):
                return Effect(0, NOT_ROUNDED)
            return self._setting("precision", device.torch_rounded if rounds else EXACT)
        return self._roots(lambda has_conv2d: True, "no module with parameters was called in training")

    def _channels_last(self) -> Effect:
        if not self.knobs.wanted("channels_last"):
            return Effect(1)
        return self._roots(lambda has_conv2d: has_conv2d, "no module with convolutions was called in training")

    def _attention(self) -> Effect:
        modules = self.watches.modules
        attention = modules.attention
        if not attention.seen:
            return Effect(0, COMPILED, is_unseen=True) if modules.own_compile.called else Effect(0, NOT_CALLED)
        return Effect(int(attention.observed == self.knobs.wanted("attention")), attention.why_another)

    def _checkpointing(self) -> Effect:
        checkpointing = self.watches.modules.checkpointing
        otherwise = "no block of a model that is called in training was computed again"
        return Effect(checkpointing.sites[1], checkpointing.obstacle or otherwise)

    def _roots(self, counts: Callable[[bool], bool], otherwise: str) -> Effect:
        roots = [root for root in self.watches.modules.roots.values() if root.trains and root.calls]
        return Effect(sum(counts(root.has_conv2d) for root in roots), otherwise)

    def _compile(self) -> Effect:
        if self.knobs.wanted("compile") in NOT_COMPILED:
            return Effect(1)
        repeats = "that repeats blocks " if self.knobs.wanted("compile") == REGIONAL else ""
        otherwise = f"no module with parameters {repeats}was called twice in training"
        compiled = self.watches.modules.compiled
        running, sites = sum(calls.running for calls in compiled), sum(calls.of - calls.silent for calls in compiled)
        if not sites and any(calls.of for calls in compiled):
            return Effect(reason=NO_GRADIENT, is_unseen=True)
        return Effect(running, not_running(compiled) if sites else otherwise)

    def _optimizer(self) -> Effect:
        chosen = str(self.knobs.wanted("optimizer"))
        optimizers = list(self.watches.steps.optimizers)
        using = sum(all(group.get(chosen) for group in each.param_groups) for each in optimizers)
        lacking = sorted(
            {type(each).__name__ for each in optimizers if chosen not in implementations(each)}
        )
        if lacking:
            return Effect(using, f"{', '.join(lacking)} has no {chosen} implementation")
        return Effect(using, "something in the script set it back" if optimizers else "no torch optimizer was made")

    def _accumulation(self) -> Effect:
        parts = self.watches.modules.parts
        return Effect(parts.sites[1], parts.obstacle() or "no module was called in training with more than one part")

    def _batch_size(self) -> Effect:
        """In a loader; where its batch is computed in parts, what a model is given at once."""
        whole = self.whole_batch()
        return self._accumulation() if whole.sites and self.knobs.wants("grad_accumulation") else whole

    def whole_batch(self) -> Effect:
        """Where loaders give the batches that an optimizer step is to be taken on."""
        return self.loader("batch_size")

    def _rate(self) -> Effect:
        rates = self.watches.steps.rates
        if self.watches.resumes.unknown_rates:
            return Effect(0, NEITHER)
        if rates.obstacle:
            return Effect(0, rates.obstacle)
        return Effect(rates.groups, "no optimizer has a learning rate")
