"""Switches knobs between two steps of a PyTorch script, and back to the script's own settings."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

from ..participants import Switcher
from ..records import Value
from . import compiler, compiling
from .implementations import Implementations
from .layouts import KeptWeights, Layouts
from .modules import DTYPES
from .optimizers import implementations
from .own_loaders import KNOBS as OWN_LOADER_KNOBS
from .watches import TorchWatches

MOST_KEPT_BYTES = 2 << 30
"""The weights, and what the optimizers remember, are kept in the host's memory: no more than so much."""
PARALLEL = frozenset({"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"})
UNSWITCHED_PRECISION = "fp16"
"""Losses would have to be scaled from the first step on."""


class TorchSwitcher(Switcher):
    """Turns each knob as a trial of its own would have it turned: by the same watches, or in the same way."""

    def __init__(self, watches: TorchWatches) -> None:
        self._watches = watches
        self._session = watches.session
        self._torch: Any = watches.torch
        self._modules = watches.modules
        self._own_loaders = watches.loaders.own
        self._compiled = watches.compiled_turns
        self._on: dict[str, Value] = {}
        self._restore: dict[str, Callable[[], None]] = {}
        self._layouts = Layouts(self._torch, self._models, self._optimizers)
        self._implementations = Implementations(self._torch, self._optimizers)
        self._weights: KeptWeights | None = None
        self._turn: Mapping[str, Callable[[Value], None]] = {
            "threads": lambda value: self._watches.set_threads(int(value)),
            "precision": self._set_precision,
            "channels_last": lambda value: self._set_layout(channels_last=True),
            "optimizer": lambda value: self._implementations.choose(str(value)),
            "cudnn_benchmark": self._set_benchmark,
            "attention": lambda value: self._modules.attention.choose(str(value)),
        }

    # what can be switched

    def obstacle(self) -> str:
        """As ``Switcher.obstacle``."""
        models, optimizers = self._models(), self._optimizers()
        weights = [weight for model in models for weight in model.parameters()]
        plain = (self._torch.Tensor, self._torch.nn.Parameter)
        if self._session.facts.trainer:
            return f"{self._session.facts.trainer} trains it, which sets some of the knobs itself"
        if not models or not optimizers:
            return "no module and optimizer of it are seen to train"
        if self._modules.own_compile.called or compiler.counts().graphs:
            return "it is compiled: each config would be compiled anew"
        if self._watches.steps.scaled_by_script:
            return "it scales its gradients itself"
        if self._watches.steps.evaluations:
            return "its optimizer updates within a closure: no step's end lies between two updates"
        if self._session.counts_its_steps:
            return "it reports its steps itself: where they end nothing may be switched"
        if any(self._is_parallel(part) for model in models for part in model.modules()):
            return "it trains in parallel"
        if any(type(weight) not in plain or weight.layout is not self._torch.strided for weight in weights):
            return "some of its weights are no plain tensors"
        if any(group.get("capturable") for optimizer in optimizers for group in optimizer.param_groups):
            return "its optimizer is made for CUDA graphs"
        if self._has_captured():
            return "it replays CUDA graphs: what they hold goes by the memory of weights, and takes up no setting"
        kept = KeptWeights(self._torch, models, optimizers).nbytes
        if kept > MOST_KEPT_BYTES:
            return f"its weights take {kept / 2**30:.1f} GiB with what its optimizers remember, too much to be kept"
        return ""

    def _is_parallel(self, part: Any) -> bool:
        """Whether other processes or devices train with it that don't switch with this one."""
        together = self._session.ranks > 1 and type(part) is self._torch.nn.parallel.DistributedDataParallel
        return type(part).__name__ in PARALLEL and not together

    def _has_captured(self) -> bool:
        """Whether the script holds a CUDA graph. By their types: to ask an object for its class may run its code."""
        graph = getattr(self._torch.cuda, "CUDAGraph", None)
        return isinstance(graph, type) and any(issubclass(type(each), graph) for each in gc.get_objects())

    def refusal(self, config: Mapping[str, Value]) -> str:
        """As ``Switcher.refusal``."""
        if compiling.KNOB in config and self._session.ranks > 1:
            return "can't be switched to: nothing is compiled by turns in several ranks"
        why = self._own_loaders.refusal(config) if self._own_loaders is not None else ""
        why = why or self._compiled.refusal(config)
        if why:
            return f"can't be switched to: {why}"
        elsewhere = OWN_LOADER_KNOBS if self._own_loaders is not None else ()
        free, known = self._session.knobs.is_free, {*self._turn, compiling.KNOB}
        unknown = sorted(knob for knob in config if knob not in elsewhere and (knob not in known or not free(knob)))
        if unknown:
            return f"can't be switched to: {', '.join(unknown)} can't be turned while it trains"
        if config.get("precision") == UNSWITCHED_PRECISION:
            return "can't be switched to: fp16 scales losses from the first step on"
        benchmarks = bool(self._torch.backends.cudnn.benchmark) != self._watches.benchmark_at_import
        for knob, is_set in (("threads", self._watches.threads_set), ("cudnn_benchmark", benchmarks)):
            if knob in config and is_set:
                return f"can't be switched to: the script sets {knob} itself, and would set it back"
        if config.get("channels_last") and any(self._is_wrapped(model) for model in self._models()):
            return "can't be switched to: what its ranks exchange keeps the layout that the weights had at first"
        if config.get("channels_last") is False:
            return "can't be switched to: the script's own layout stays"
        chosen = config.get("optimizer")
        if chosen is not None and not any(chosen in implementations(each) for each in self._optimizers()):
            return f"can't be switched to: no optimizer has a {chosen} implementation"
        return ""

    def _is_wrapped(self, model: Any) -> bool:
        """Whether its gradients go through buckets, which would mix them up: see ``DdpWatch``."""
        return any(type(part).__name__ in PARALLEL for part in model.modules())

    # switching

    def begin(self) -> None:
        """As ``Switcher.begin``."""
        torch, device, modules = self._torch, self._session.device, self._modules
        threads, benchmark = torch.get_num_threads(), bool(torch.backends.cudnn.benchmark)
        precision, round_as_before = modules.precision, device.torch_kept_rounding(torch)
        written = modules.attention.settings()

        def restore_precision() -> None:
            modules.precision = precision
            round_as_before()

        self._layouts.keep()
        self._implementations.keep()
        self._weights = KeptWeights(torch, self._models(), self._optimizers())
        self._weights.keep()
        self._restore = {
            "threads": lambda: self._watches.set_threads(threads),
            "precision": restore_precision,
            "channels_last": lambda: self._set_layout(channels_last=False),
            "optimizer": self._implementations.restore,
            "cudnn_benchmark": lambda: self._set_benchmark(benchmark),
            "attention": lambda: modules.attention.restore(written),
        }

    def to(self, config: Mapping[str, Value]) -> None:
        """As ``Switcher.to``. The calls after it are looked at for what it changed."""
        if self._own_loaders is not None:
            self._own_loaders.hold()
        self._modules.look_again()
        self._compiled.off()
        self._implementations.reset_others()
        for knob in [knob for knob in self._on if config.get(knob) != self._on[knob]]:
            self._restore[knob]()
            del self._on[knob]
        for knob, value in config.items():
            if knob not in self._on and knob in self._turn:
                self._on[knob] = value  # before it is done: a part of it may be, where it fails
                self._turn[knob](value)
        self._compiled.on(config)  # in its other settings
        if self._own_loaders is not None:
            self._own_loaders.to(config)

    def loads(self, config: Mapping[str, Value]) -> bool:
        """As ``Switcher.loads``."""
        return any(knob in config for knob in OWN_LOADER_KNOBS)

    def leave(self, config: Mapping[str, Value]) -> None:
        """As ``Switcher.leave``."""
        self._compiled.leave(config)
        if self._own_loaders is not None:
            self._own_loaders.leave(config)

    def end(self) -> None:
        """As ``Switcher.end``."""
        self._compiled.end()
        if self._own_loaders is not None:
            self._own_loaders.end()

    def put_back_weights(self) -> None:
        """As ``Switcher.put_back_weights``."""
        if self._weights is not None:
            self._weights.put_back()

    def doubt(self, config: Mapping[str, Value]) -> str:
        """As ``Switcher.doubt``."""
        modules, seen = self._modules, self._modules.observed_dtype
        elsewhere = self._own_loaders.doubt(config) if self._own_loaders is not None else ""
        elsewhere = elsewhere or self._compiled.doubt(config)
        if elsewhere:
            return elsewhere
        wanted = DTYPES.get(str(config.get("precision")), "")
        if wanted and seen and seen != wanted:
            return f"the first layer gave {seen}"
        if config.get("channels_last") and modules.observed_layout is False:
            return "convolutions were given batches in the script's own layout"
        attention = modules.attention.observed
        if "attention" in config and attention and attention != config["attention"]:
            return f"{attention} ran as attention"
        if "threads" in config and self._torch.get_num_threads() != config["threads"]:
            return f"{self._torch.get_num_threads()} threads are set"
        if "optimizer" in config and not self._implementations.are(str(config["optimizer"])):
            return "an optimizer, or a group of its weights, was made or loaded meanwhile"
        return ""

    def disturbed(self, config: Mapping[str, Value]) -> str:
        """As ``Switcher.disturbed``."""
        return self._compiled.disturbed()

    def _set_precision(self, value: Value) -> None:
        self._modules.precision = value
        if value not in DTYPES:
            self._session.device.torch_set_rounding(self._torch, value == self._session.device.torch_rounded)

    def _set_layout(self, *, channels_last: bool) -> None:
        self._modules.layout.wanted = channels_last or None
        self._layouts.put(channels_last=channels_last)

    def _set_benchmark(self, value: Value) -> None:
        self._torch.backends.cudnn.benchmark = bool(value)

    def _models(self) -> list[Any]:
        """Those that train, the outermost ones."""
        return [model for model, root in self._modules.roots.items() if root.trains]

    def _optimizers(self) -> list[Any]:
        return list(self._watches.steps.optimizers)
