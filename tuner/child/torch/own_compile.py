"""The script's own calls of ``torch.compile``: which of its models, in which mode, and in another one where asked.

Such a call is one that is given a module with parameters to train, or such a module's own forward, which is what
``Module.compile`` gives it. Functions, optimizers and modules without such parameters are left to the script.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..applied import Effect
from ..evidence import Finding
from ..patches import patch
from ..records import Evidence, Phase, Value
from ..session import Session
from . import compiler
from .calls import OutermostCalls
from .compiling import CUDA_GRAPHS, NO_GRADIENT, CompiledCalls, compile_finding, not_running
from .outputs import with_clones
from .types import Result

KNOB = "compile_mode"
OFF, DEFAULT = "off", "default"
IN_CUDA_GRAPHS = frozenset({CUDA_GRAPHS, "max-autotune"})
"""Modes of torch.compile that replay CUDA graphs."""
LOOKED_AT = (2, 10)
"""Calls of what is compiled by their number: the first one compiles, and ``autotune run`` tells after 20 steps."""
NOT_COMPILED_ITSELF = "the script doesn't compile its model itself"
UNCALLED = "what the script compiles isn't called by itself in training"
STILL_COMPILED = "what the script compiles runs compiled all the same"
FUNCTIONS = "compiled code ran in it, which may be that of functions that the script compiles, too"
_FORWARDS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl")


@dataclass
class Site:
    """One such call, with those that compile the same module again in the same way, as in each step: its ``mode`` as
    written, and an ``obstacle`` to any other one ("" for none).

    ``seen`` is what was seen of the calls of what it gave, of which so many were ``called`` with gradients.
    """

    mode: str
    obstacle: str
    seen: CompiledCalls = field(default_factory=lambda: CompiledCalls(1))
    called: int = 0
    seen_in_window: bool = False


class OwnCompile:
    """Patches ``torch.compile``. Nothing is done to what the script compiles where the config doesn't ask for it."""

    def __init__(self, session: Session, torch: ModuleType, calls: OutermostCalls) -> None:
        self._session = session
        self._torch: Any = torch
        self._calls = calls
        self.called = False
        """Whether the script calls ``torch.compile``, whatever for."""
        self.sites: list[Site] = []
        self._of_module: weakref.WeakKeyDictionary[Any, dict[tuple[str, str], Site]] = weakref.WeakKeyDictionary()
        self._of_functions = False

    def install(self) -> None:
        """Patches it; ``Module.compile`` calls it, too."""
        patch(self._torch, "compile", self._compile)

    def _compile(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def compile(*args: Any, **how: Any) -> Result:
            if not self._session.here:
                return original(*args, **how)
            model = args[0] if args else how.get("model")
            is_trained = model is not None and self._is_trained(model)
            # In a model's call it is PyTorch that compiles functions, or we do.
            self.called |= is_trained or not self._calls.inside
            if model is None or how.get("disable"):  # a decorator calls again, with what it decorates
                return original(*args, **how)
            if not is_trained:
                self._of_functions = True
                return original(*args, **how)
            how.pop("model", None)
            given: Result = self._of_model(original, model, how)
            return given

        return compile

    def _is_trained(self, model: Any) -> bool:
        """Whether it is a module with parameters to train, or the forward of one."""
        module = self._module_of(model)
        return isinstance(module, self._torch.nn.Module) and any(each.requires_grad for each in module.parameters())

    def _module_of(self, model: Any) -> Any:
        """The module that is given, or whose forward is; None of anything else."""
        if isinstance(model, self._torch.nn.Module):
            return model
        return getattr(model, "__self__", None) if getattr(model, "__name__", "") in _FORWARDS else None

    def _site(self, model: Any, how: Mapping[str, Any]) -> Site:
        """Where the module was compiled so before; else a new one."""
        mode, obstacle = str(how.get("mode") or DEFAULT), _obstacle(how)
        made = self._of_module.setdefault(self._module_of(model), {})
        if (mode, obstacle) not in made:
            made[mode, obstacle] = Site(mode, obstacle)
            self.sites.append(made[mode, obstacle])
        return made[mode, obstacle]

    def _of_model(self, original: Callable[..., Any], model: Any, how: dict[str, Any]) -> Any:
        site = self._site(model, how)
        mode = self._session.knobs.wanted(KNOB)
        if mode is None or site.obstacle:
            return original(model, **how)
        if mode == OFF:
            return self._uncompiled(model, site)
        compiled = original(model, **{**how, "mode": None if mode == DEFAULT else mode})
        # A CUDA graph writes its next outputs over these. A script that was written for that sees to it itself.
        clones = mode in IN_CUDA_GRAPHS and site.mode not in IN_CUDA_GRAPHS
        return self._watched(model, compiled, site, clones=clones)

    def _uncompiled(self, model: Any, site: Site) -> Any:
        """What the script may do all with that it may do with what is compiled: it is of the same class, and has the
        same names for weights. Copies of it, and what Lightning makes of its ``dynamo_ctx``, don't compile either.

        Its forward is the module's own call, past the compiler's switches around each call. So a function that the
        script compiles takes in the module as it does where that is compiled.
        """
        kind = self._torch.nn.Module
        given = self._torch.compiler.disable(model) if isinstance(model, kind) else None
        if not isinstance(given, kind):  # a forward, or what was compiled before, of which PyTorch makes a function
            return self._looked_at(model, site, clones=False)
        given.forward = self._looked_at(given._orig_mod.__call__, site, clones=False)
        return given

    def _watched(self, model: Any, compiled: Any, site: Site, *, clones: bool) -> Any:
        if not isinstance(compiled, self._torch.nn.Module):
            return self._looked_at(compiled, site, clones=clones)
        if compiled is not model:  # as it is where the compiler is switched off (TORCHDYNAMO_DISABLE)
            compiled.forward = self._looked_at(compiled.forward, site, clones=clones)
        return compiled

    def _looked_at(self, run: Callable[..., Any], site: Site, *, clones: bool) -> Callable[..., Any]:
        torch, is_compiling = self._torch, self._torch.compiler.is_compiling

        @functools.wraps(run, updated=())
        def forward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return run(*args, **kwargs)
            site.seen.looks = False
            if torch.is_grad_enabled():
                self._look(site)
            result = site.seen.call(torch, 0, run, args, kwargs)
            return with_clones(torch, result) if clones else result

        return forward

    def _look(self, site: Site) -> None:
        session = self._session
        in_window = session.measuring and session.clock.phase is Phase.WINDOW
        site.seen.look(now=site.called in LOOKED_AT or (in_window and not site.seen_in_window))
        site.seen_in_window |= in_window
        site.called += 1

    # what is told

    def written(self) -> None:
        """The mode of the script's calls as a fact, or why there is no other one for them; nothing without any."""
        if not self.sites:
            return
        facts = self._session.facts
        facts.as_written[KNOB] = self.sites[0].mode
        reason = self._why_as_written()
        if reason:
            facts.left_out[KNOB] = reason

    def _why_as_written(self) -> str:
        modes = self._modes
        if self._obstacle or len(modes) > 1:
            return self._obstacle or f"the script compiles its models in several modes: {', '.join(modes)}"
        is_off = self._session.knobs.wanted(KNOB) == OFF
        return "" if is_off or compiler.counts().graphs else compiler.why_not_compiled()

    def report(self) -> None:
        """The evidence."""
        knobs = self._session.knobs
        if KNOB not in knobs.requested:
            return
        if not self.sites:
            knobs.inapplicable(KNOB, NOT_COMPILED_ITSELF, sites=0)
        elif not knobs.wants(KNOB):
            knobs.compare(KNOB, ", ".join(self._modes))
        else:
            knobs.report(KNOB, self._finding(knobs.requested[KNOB]))

    def _finding(self, wanted: Value) -> Finding:
        sites, called = len(self.sites), self._seen_in_training
        changed = sum(not site.obstacle for site in self.sites)
        if self._obstacle:
            return Finding(Evidence.CONTRADICTED, self._obstacle, None, sites, changed)
        if called and wanted != OFF:
            return compile_finding(called, only_graphs=wanted == CUDA_GRAPHS)
        effect = self.effect()
        if effect.is_unseen:
            return Finding(Evidence.UNVERIFIABLE, effect.reason, None, sites)
        if not effect.sites:
            return Finding(Evidence.CONTRADICTED, effect.reason, DEFAULT, sites, 0)
        return Finding(Evidence.VERIFIED, "", OFF, len(called) or sites, effect.sites)

    def effect(self) -> Effect:
        """For ``autotune run``."""
        called = self._seen_in_training
        if not self.sites or self._obstacle:
            return Effect(0, self._obstacle or NOT_COMPILED_ITSELF)
        is_off = self._session.knobs.wanted(KNOB) == OFF
        if not called:
            # Lightning calls it in another way, which compiles nothing where nothing was compiled at all.
            plain = is_off and not compiler.counts().graphs
            return Effect(len(self.sites) * plain, UNCALLED, is_unseen=not plain)
        if is_off:
            return self._of_off(called)
        if not sum(seen.of - seen.silent for seen in called):
            return Effect(0, NO_GRADIENT, is_unseen=True)
        return Effect(sum(seen.running for seen in called), not_running(called))

    @property
    def _obstacle(self) -> str:
        """Of the first of the script's calls that has one."""
        return next((site.obstacle for site in self.sites if site.obstacle), "")

    @property
    def _modes(self) -> list[str]:
        return sorted({site.mode for site in self.sites})

    @property
    def _seen_in_training(self) -> list[CompiledCalls]:
        return [site.seen for site in self.sites if site.called]

    def _of_off(self, called: list[CompiledCalls]) -> Effect:
        """Of what isn't to be compiled: at how many places no compiled code was seen to run."""
        ran = [seen.ran.get(0) for seen in called if seen.looked]
        if True in ran:
            return Effect(0, FUNCTIONS, is_unseen=True) if self._of_functions else Effect(0, STILL_COMPILED)
        plain = ran.count(False)
        return Effect(plain, NO_GRADIENT, is_unseen=not plain)


def _obstacle(how: Mapping[str, Any]) -> str:
    """Why a call of ``torch.compile`` with these arguments is left as it is, or ""."""
    backend = how.get("backend")
    if backend not in (None, "inductor"):
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
        return f"the script compiles with the backend {name}"
    return "the script gives the compiler options of its own" if how.get("options") is not None else ""
