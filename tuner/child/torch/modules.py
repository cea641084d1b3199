"""PyTorch's modules: precision, memory layout and compilation around the outermost training call of a module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

from ..patches import patch
from ..records import Phase
from ..session import Session
from .attention import KNOB as ATTENTION
from .attention import AttentionWatch
from .calls import OutermostCalls
from .channels_last import KNOB as LAYOUT
from .channels_last import ChannelsLast, Pair
from .checkpointing import CheckpointWatch
from .compiling import (
    CUDA_GRAPHS,
    DYNAMIC,
    KNOB,
    MOST_MODELS,
    NOT_COMPILED,
    REGIONAL,
    CompiledCalls,
    Root,
    Shapes,
    compiled_model,
    gradients_of,
    repeated_blocks,
    runs_compiled,
    with_compiled_blocks,
)
from .kept_calls import KeptCalls
from .layer_looks import Convolutions, LayerLook, is_built, is_channels_last
from .outputs import with_clones, with_tensors
from .own_compile import KNOB as OWN_MODE
from .own_compile import OwnCompile
from .parts import PartsWatch, in_backward
from .rollouts import RolloutWatch
from .types import Module, Result

EXACT = "fp32"
NOT_ROUNDED = "the processor takes products of float32 in full, although PyTorch lets it round them"
ROUNDINGS = (EXACT, "tf32", "bf16-math")
"""Values of the knob "precision" for products of float32: as they are, and rounded in the ways that devices have."""
CallListener = Callable[[Module, Iterable[object]], None]
"""Receives a module that is called to train, and what it is given."""
LOOKED_AT_IN_A_RUN = (0, 5, 10)
"""Calls of a model by their number: within the steps after which ``autotune run`` tells what took effect."""
COMPILED_LOOKED_AT = (2, 10)
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


class ModuleWatch:
    """Patches ``Module.__call__``; only the outermost call acts, and only on modules with parameters to train.

    ``on_call``: is told of each such call, before it is made.

    Global forward hooks would multiply a compiled model's graphs, and full-backward hooks break in-place models.
    """

    def __init__(self, session: Session, torch: ModuleType, on_call: CallListener) -> None:
        self.session = session
        self.torch = torch
        self.on_call = on_call
        self.asks: Callable[[Module, bool], bool] = lambda module, gradients: False
        """Is told of each call of a module that may train, before it is made, and whether with gradients. Says whether
        it may be an evaluation of a loader's batch.
        """
        self.calls = OutermostCalls()
        self.own_compile = OwnCompile(session, torch, self.calls)
        self.precision = session.knobs.wanted("precision")
        self.layout = ChannelsLast(session, torch)
        mode = session.knobs.wanted(KNOB)
        self.compile_mode = None if mode in NOT_COMPILED else mode
        self.device_type = session.device.torch_type
        self.parts = PartsWatch(session, torch, self._rounds)
        self.rollouts = RolloutWatch(torch)
        self.attention = AttentionWatch(session, torch)
        self.checkpointing = CheckpointWatch(session, torch)
        self.layer_look: LayerLook | None = None
        """What looks at single layers, as long as a call is looked at."""
        self.roots: weakref.WeakKeyDictionary[Module, Root] = weakref.WeakKeyDictionary()
        self.calls_since_backward = self.covered_backwards = 0
        self.script_autocast = False
        self.observed_dtype = ""
        self.layouts = {True: 0, False: 0}
        self.parameter_dtypes: set[str] = set()
        self.parameter_devices: set[str] = set()
        self.has_conv2d = self.weights_channels_last = self.has_batch_norm = False
        self.convolutions = Convolutions(torch)
        self.only_takes: Callable[[], bool] = lambda: False
        """Whether gradients are taken behind which no weight moves."""
        self.compiled: list[CompiledCalls] = []
        """Of each model that was compiled."""
        of_a_rotation = [config for config in session.request.rotation if session.measuring and KNOB in config]
        self.kept_calls = KeptCalls(session, torch) if of_a_rotation else None
        """What configs of a rotation are compiled on; None where none of them is."""
        self.ran_compiled: bool | None = None
        """Of the newest look at a call of what is not compiled: whether compiled code ran all the same."""
        self.repeats_blocks, self._window_looks, self._acts = False, 0, False
        self.shapes: list[Shapes] = []
        """Of each model that trains; they outlive it."""

    def _delegated(self, knob: str) -> None:
        if knob == "precision":
            self.precision = None
        elif knob == LAYOUT:
            self.layout.wanted = None
        elif knob == KNOB:
            self.compile_mode = None

    def install(self) -> None:
        """Patches what the mode needs."""
        self.session.knobs.on_delegation(self._delegated)
        self._acts = self.precision in DTYPES or bool(self.layout.wanted or self.compile_mode) or self.parts.parts > 1
        self._acts |= self.checkpointing.wanted
        if self.session.measuring or self._acts or self._shows_attention:
            patch(self.torch.nn.Module, "__call__", self._call)
        if self.session.measuring or self._shows_attention or self.session.knobs.wants(OWN_MODE):
            self.own_compile.install()
        self.layout.install()

    @property
    def _shows_attention(self) -> bool:
        """Whether an applied run has to tell which attention runs."""
        return self.session.applied is not None and self.session.knobs.wants(ATTENTION)

    def _call(self, original: Callable[..., Result]) -> Callable[..., Result]:
        watch, calls, is_compiling = self, self.calls, self.torch.compiler.is_compiling
        instruments, acts = self.session.clock.instruments, self._acts

        def __call__(module: Module, *args: object, **kwargs: object) -> Result:
            if is_compiling() or (instruments.off and not acts):
                return original(module, *args, **kwargs)
            if calls.covers(module):
                if module is watch.parts.inner:
                    result: Result = watch.parts.run(module, partial(original, module), args, kwargs)
                    return result
                if watch.layer_look is not None:
                    return watch.layer_look.call(original, module, args, kwargs)
                return original(module, *args, **kwargs)
            outermost = watch._unwatched if instruments.off else watch._outermost
            return outermost(original, module, args, kwargs)

        return __call__

    def _unwatched(
        self, original: Callable[..., Result], module: Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Result:
        """As ``_outermost``, while the instruments are off: what the config wants is done, and nothing is looked at."""
        root, is_not_ours = self.roots.get(module), self.torch.jit.is_tracing() or not self.session.here
        if root is None or is_not_ours or in_backward(self.torch) or (self.compile_mode and root.compiled is None):
            return self._outermost(original, module, args, kwargs)
        if not (root.trains and self.torch.is_grad_enabled()):
            return original(module, *args, **kwargs)
        with self.calls.entered(module):
            return self._prepared(original, module, root, args, kwargs, compiled=root.compiled)

    def _outermost(
        self, original: Callable[..., Result], module: Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Result:
        torch = self.torch
        ours = self.session.here and self.session.may_be_of("torch")
        if not ours or torch.jit.is_scripting() or torch.jit.is_tracing():
            return original(module, *args, **kwargs)
        if in_backward(torch):
            return self._recompute(original, module, args, kwargs)
        if not torch.is_grad_enabled():
            self.convolutions.meets(module)
            clock = self.session.clock
            looks_at_batch = self.asks(module, False)
            # Without ``eval()`` it is still no training when a batch of the training loader goes in, or of another one.
            looks = not module.training or looks_at_batch or clock.holds_samples or clock.validating
            if self.session.measuring and looks and not self.rollouts.asked(module, (*args, *kwargs.values())):
                clock.validation_begins(id(module))
            return original(module, *args, **kwargs)
        root = self.roots.get(module)
        if root is None or not root.is_settled:
            root = self._meet(module)
        if not root.trains:
            return root.frozen(torch, original, module, args, kwargs)
        if self.session.measuring and self.session.clock.validating and module.training and not self.only_takes():
            self.session.clock.training_resumes()
        self.calls_since_backward += 1
        self.asks(module, True)
        self.on_call(module, (*args, *kwargs.values()))
        with self.calls.entered(module):
            return self._forward(original, module, root, args, kwargs)

    def _recompute(
        self, original: Callable[..., Result], module: Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Result:
        """Within a backward a checkpoint runs its part again: as it ran the first time, or its tensors don't match.

        The checkpoint brings back the autocast that it was called in. Where that is ours, or where the module was never
        called to train by itself, the module was within another that we had prepared: nothing is done to it here.
        """
        self.checkpointing.recomputes()
        root = self.roots.get(module)
        if root is None or not root.trains or self._is_in_precision():
            return original(module, *args, **kwargs)
        with self.calls.entered(module):
            return self._prepared(original, module, root, args, kwargs, compiled=root.compiled)

    def _is_in_precision(self) -> bool:
        if self.precision not in DTYPES or not self.torch.is_autocast_enabled(self.device_type):
            return False
        return bool(self.torch.get_autocast_dtype(self.device_type) == getattr(self.torch, DTYPES[str(self.precision)]))

    def _forward(
        self, original: Callable[..., Result], module: Module, root: Root, args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Result:  # fmt: skip
        # The first call is eager, so that what really happens in single layers can be seen.
        if self.compile_mode and root.calls >= 1 and self.parts.decided(module):
            root.compiled = root.compiled or self.compile(module, root)
            self._look_at_compiled(root)
        if self.session.measuring:
            root.shapes.given(self.torch, (*args, *kwargs.values()), compiled=root.compiled is not None)
        looks = self._is_worth_a_look(root)
        keeping = self.kept_calls.of(module, root.calls, args, kwargs) if self.kept_calls is not None else nullcontext()
        shown = looks and self.kept_calls is not None
        before = gradients_of(self.torch, (args, kwargs)) if shown else set()
        looking = self._observing(module, original) if looks else nullcontext(original)
        blocks = self.checkpointing.around(module, root.calls, compiled=self.own_compile.called)
        with keeping, looking as run, blocks:
            result = self._prepared(run, module, root, args, kwargs, compiled=root.compiled)
        if shown:
            self.ran_compiled = runs_compiled(self.torch, before, result)
        root.calls += 1
        if root.compiled is not None:
            root.shapes.compiled_call_ended()
        return result

    def _look_at_compiled(self, root: Root) -> None:
        """Looked at are some calls after that for which it is compiled, and the first one in the window."""
        in_window = self.session.measuring and self.session.clock.phase is Phase.WINDOW
        root.compiled_calls.look(now=root.calls in COMPILED_LOOKED_AT or (in_window and not root.seen_in_window))
        root.seen_in_window |= in_window

    def _is_worth_a_look(self, root: Root) -> bool:
        """The first call, and one in the window: what is seen there is what was measured. Of a run some of the first.

        Not where anything is compiled: it would be compiled anew for the sake of who listens to attention.
        """
        if not self.session.measuring:
            return self._shows_attention and root.calls in LOOKED_AT_IN_A_RUN
        if root.calls == 0:
            return len(self.shapes) < MOST_MODELS
        compiled = root.compiled is not None or self.own_compile.called
        in_window = self.session.clock.phase is Phase.WINDOW and self._window_looks < MOST_MODELS
        if root.seen_in_window or compiled or not in_window:
            return False
        root.seen_in_window, self._window_looks = True, self._window_looks + 1
        return True

    def _prepared(
        self, original: Callable[..., Result], module: Module, root: Root, args: tuple[object, ...],
        kwargs: dict[str, object], *, compiled: Callable[..., Any] | None,
    ) -> Result:  # fmt: skip
        """The module's own call, or what it was compiled to, in the layout and the precision of the config."""
        args, kwargs, pairs = self._laid(root, args, kwargs)
        forward: Callable[..., Any] = compiled or partial(original, module)
        if compiled is not None and self.compile_mode == CUDA_GRAPHS:
            # A CUDA graph writes its next outputs over these, which the script may still hold.
            forward = self._cloning(compiled)
        rotation = self.session.rotation
        alone = compiled is None and self.session.ranks == 1  # others may take part in the call, and that only once
        switched = alone and self.precision in DTYPES and rotation is not None and rotation.has_config
        try:
            result: Result = self._in_precision(lambda: self.parts.run(module, forward, args, kwargs))
            self.layout.bring_back(pairs)
            return result
        except Exception as error:
            if not switched:
                raise
            failure = f"raised {type(error).__name__}: {error}"
        # Out of the handler, since the error holds what the call had computed.
        result = self.parts.run(module, forward, args, kwargs)
        self.layout.bring_back(pairs)
        if rotation is not None:
            rotation.failed(failure)
        return result

    def rehearse(self, module: Module, root: Root, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Calls what the module was compiled to as a step does, and has that looked at; it counts as no step's call."""
        compiled = root.compiled
        assert compiled is not None
        args, kwargs, _ = self._laid(root, args, kwargs)
        root.compiled_calls.look(now=True)
        with self.calls.entered(module):
            return self._in_precision(lambda: compiled(*args, **kwargs))

    def _laid(
        self, root: Root, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object], Sequence[Pair]]:
        return self.layout.laid(args, kwargs) if self.layout.wanted and root.has_conv2d else (args, kwargs, ())

    def _in_precision(self, run: Callable[[], Result]) -> Result:
        if self.precision not in DTYPES:
            return run()
        dtype = getattr(self.torch, DTYPES[str(self.precision)])
        with self.torch.autocast(self.device_type, dtype=dtype):
            result = run()
        # Outputs go back as float32: the script's own loss and metrics were written for that.
        converted: Result = with_tensors(self.torch, result, lambda x: x.float() if x.dtype == dtype else x)
        return converted

    def _rounds(self) -> bool:
        """Whether matrix products are taken with fewer digits than those of full float32."""
        autocast = self.precision in DTYPES or bool(self.torch.is_autocast_enabled(self.device_type))
        return autocast or any(self.session.device.torch_rounding(self.torch))

    def _cloning(self, run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: with_clones(self.torch, run(*args, **kwargs))

    def compile(self, module: Module, root: Root) -> Callable[..., Any]:
        """What to call in the place of the module, in the mode of the config."""
        if self.compile_mode == REGIONAL:
            compiled, calls = with_compiled_blocks(self.torch, module)
        else:
            compiled, calls = compiled_model(self.torch, module, self.compile_mode)
        self.compiled.append(calls)
        root.compiled_calls = calls
        return compiled

    def _meet(self, module: Module) -> Root:
        torch = self.torch
        earlier = self.roots.get(module)
        parameters = [p for p in module.parameters() if not torch.nn.parameter.is_lazy(p)]
        convolutions = [m for m in module.modules() if isinstance(m, torch.nn.Conv2d)]
        may_train = earlier is not None or is_built(torch, module)  # what its first call didn't build it doesn't use
        trains = may_train and any(p.requires_grad for p in parameters)
        root = self.roots[module] = Root(trains, bool(convolutions), looks=1 if earlier is None else earlier.looks + 1)
        self.convolutions.meets(module)  # in a frozen part of the loss, too
        if trains:
            self.parameter_dtypes |= {str(p.dtype).removeprefix("torch.") for p in parameters}
            self.parameter_devices |= {p.device.type for p in parameters if p.requires_grad}
            self.has_conv2d |= bool(convolutions)
            self.has_batch_norm |= any(isinstance(m, torch.nn.modules.batchnorm._BatchNorm) for m in module.modules())
            if len(self.shapes) < MOST_MODELS:
                self.shapes.append(root.shapes)
            self.repeats_blocks |= bool(repeated_blocks(torch, module))
            self.script_autocast |= torch.is_autocast_enabled(self.device_type)
            self.weights_channels_last |= any(is_channels_last(torch, c.weight) for c in convolutions)
            if convolutions and (self.session.measuring or self.layout.wanted):
                self.layout.meets(module)
        return root

    @contextmanager
    def _observing(self, module: Module, original: Callable[..., Result]) -> Iterator[Callable[..., Result]]:
        look = self.layer_look = LayerLook(self.torch, module, self.device_type) if self.session.measuring else None
        try:
            with self.attention.looking(compiled=self.own_compile.called):
                yield original if look is None else look.around(original)
        finally:
            self.layer_look = None
            if look is not None:
                self.observed_dtype = look.dtype or self.observed_dtype
                self.script_autocast |= look.autocast and self.precision not in DTYPES
                for layout, count in look.layouts.items():
                    self.layouts[layout] += count

    def graph_compiled(self, nodes: Iterable[Any]) -> None:
        """A graph with these nodes is given to the backend of the compiler."""
        if self.layer_look is not None and self.calls.inside:
            self.layer_look.graph(nodes)

    @property
    def observed_layout(self) -> bool | None:
        """Whether most convolutions were given channels-last batches; None where none showed it.

        A model that makes its batch of a list of images, as for detection, gets its first one in the script's layout.
        """
        return self.layouts[True] >= self.layouts[False] if any(self.layouts.values()) else None

    @property
    def compile_choices(self) -> list[str]:
        """What else may be compiled than all of a model for the first shapes that it is given."""
        vary = any(shapes.vary for shapes in self.shapes)
        return [*([REGIONAL] * self.repeats_blocks), *([DYNAMIC] * vary)]

    def look_again(self) -> None:
        """Has each model's next call in the window looked at, as if none had been."""
        self.observed_dtype, self.layouts, self.ran_compiled, self._window_looks = "", {True: 0, False: 0}, None, 0
        self.attention.look_again()
        for root in self.roots.values():
            root.seen_in_window = False

    def backward_ran(self) -> None:
        """Counts the backwards that a training call of ours preceded: the share that the knobs reach."""
        self.parts.backward_ran()
        self.covered_backwards += self.calls_since_backward > 0
        self.calls_since_backward = 0
