"""Instruments PyTorch: installs the watches, then turns what they saw into facts and evidence."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

from ..adapter import Adapter, Library
from ..session import Session
from . import trackers, trainers
from .files import divert_safetensors, divert_torch
from .gradients import GradientWatch
from .loader import LoaderWatch
from .modules import NOT_COMPILED, ModuleWatch
from .processes import ProcessWatch
from .seeds import seed
from .steps import StepWatch

SUPPORTED = (2, 4)
DTYPE_WORDS = {
    "float32": ("fp32", "tf32", "float32", "float", "single", "32", "no"),
    "bfloat16": ("bf16", "bfloat16"),
    "float16": ("fp16", "float16", "half", "16"),
}
NO_LOADER = "no DataLoader feeds the training steps"


class TorchAdapter(Adapter):
    """One trial's watches on PyTorch, made when it is imported."""

    framework = "torch"
    torch: ModuleType
    loaders: LoaderWatch
    modules: ModuleWatch
    gradients: GradientWatch
    steps: StepWatch

    def __init__(self, session: Session) -> None:
        self.session = session
        self.cuda = session.device.startswith("cuda")
        self.samples_told = False

    @property
    def libraries(self) -> Mapping[str, Library]:
        """PyTorch, the trainers that wrap it, and what writes past ``open`` or beside the script."""
        wrapping = {**trainers.TRAINERS, **trackers.TRACKERS}
        return {
            "torch": Library(self.install, True, SUPPORTED, seed, divert_torch),
            "safetensors.torch": Library(divert=divert_safetensors),
            **{name: Library(partial(install, self.session)) for name, install in wrapping.items()},
        }

    def install(self, torch: ModuleType) -> None:
        """Settings first, patches next; nothing of the script's has run yet."""
        session, self.torch = self.session, torch
        self.loaders = LoaderWatch(session, torch)
        self.modules = ModuleWatch(session, torch)
        self.gradients = GradientWatch(session, torch, self._is_exact)
        self.steps = StepWatch(session, torch, self._backward_ran, self.gradients)
        self._cap_memory()
        if session.wants("threads"):
            torch.set_num_threads(int(session.config["threads"]))
        if session.wants("cudnn_benchmark"):
            torch.backends.cudnn.benchmark = bool(session.config["cudnn_benchmark"])
        if session.wants("precision") and self.cuda and session.config["precision"] in ("tf32", "fp32"):
            torch.set_float32_matmul_precision("high" if session.config["precision"] == "tf32" else "highest")
            torch.backends.cudnn.allow_tf32 = session.config["precision"] == "tf32"
        self.loaders.on_batch = self.gradients.batch_fetched
        self.loaders.install()
        self.modules.install()
        self.steps.install()
        if session.measuring:
            ProcessWatch(session, torch).install()

    def _cap_memory(self) -> None:
        """The allocator's own cap: a config that takes too much fails here, and no neighbour on the card does.

        Set when the script first touches the GPU: to do so now would fix what it may still choose.
        """
        cuda, limit = self.torch.cuda, self.session.request.get("max_device_bytes")
        if not (self.cuda and limit and self.session.config):
            return

        def cap() -> None:
            cuda.set_per_process_memory_fraction(min(1.0, limit / cuda.get_device_properties(0).total_memory), 0)

        cuda._lazy_call(cap)

    def _backward_ran(self, leads: bool) -> None:
        if not self.session.may_be_of("torch"):
            return
        self.loaders.backward_ran()
        self.modules.backward_ran()
        size = self.session.told_batch_size() if leads and self.loaders.primary is None else 0
        if size:
            self.samples_told = True
            self.session.clock.add_samples(size, 0.0)

    def synchronize(self) -> None:
        if self.cuda and self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()

    def activity(self) -> int:
        """Changes with every graph that is compiled, every fp16 step that is skipped, every change of the loader."""
        return _counters()[0] + self.steps.scalers.skipped + self.loaders.changes_of_primary

    def on_block(self) -> None:
        self.session.clock.min_window_steps = 3 * self._prefetch_capacity()
        self.steps.scalers.settle()
        loss = self.steps.losses.take()
        if loss is not None:
            self.session.loss(loss)

    def _prefetch_capacity(self) -> int:
        """Batches that can lie ready: a window shorter than this measures a queue that was filled before."""
        if self.loaders.primary is None:
            return 0
        live = self.loaders.loaders[self.loaders.primary].live
        return int(live.get("num_workers") or 0) * int(live.get("prefetch_factor") or 0)

    # what was seen

    def observe(self) -> None:
        if not self.session.may_be_of("torch"):
            return
        for observe in (self._observe_device, self._observe_script, self._observe_knobs):
            try:
                observe()
            except Exception as error:
                self.session.note(f"observation failed: {type(error).__name__}: {error}")

    def _observe_device(self) -> None:
        graphs, seconds, breaks = _counters()
        if graphs:
            hits, misses = _cache_counts()
            self.session.recorder.emit(
                "compile", graphs=graphs, seconds=seconds, breaks=breaks, cache_hits=hits, cache_misses=misses
            )
        cuda = self.torch.cuda
        if self.cuda and cuda.is_initialized():
            free, total = cuda.mem_get_info()
            stats = cuda.memory_stats()
            reserved = cuda.max_memory_reserved()
            others = int(self.session.request.get("used_device_bytes") or 0)
            self.session.recorder.emit(
                "memory", reserved=reserved, allocated=cuda.max_memory_allocated(), total=total,
                overhead=max(0, total - free - cuda.memory_reserved() - others),
                retries=stats.get("num_alloc_retries", 0), ooms=stats.get("num_ooms", 0),
            )  # fmt: skip

    def _observe_script(self) -> None:
        session, steps, modules = self.session, self.steps, self.modules
        primary = self.loaders.loaders.get(self.loaders.primary or "")
        # The probe's loader side trains on nothing, so that no loader is seen to feed a backward.
        counted = self.samples_told or (session.probe == "loader" and session.clock.total_samples > 0)
        countable = primary.fetches > 1 if primary is not None else counted
        session.facts.update(
            framework="torch", framework_version=self.torch.__version__, unit="samples" if countable else "steps",
            training_loaders=self._training_loaders(), dataset_len=primary.dataset_len if primary else None,
            optimizers=[x.name for x in steps.stepped], backwards=steps.backwards, optimizer_steps=steps.steps,
            precisions=self._precisions(), loss_reduction=steps.losses.reduction, batch_norm=modules.has_batch_norm,
            loaders=[{"key": x.key, "fetches": x.fetches, "made": x.made} for x in self.loaders.loaders.values()],
        )  # fmt: skip
        steps.scalers.settle()
        if steps.scalers.steps:
            session.facts["gradient_scaler"] = steps.scalers.facts()
        self._written_loader(primary)
        self._written_modules()
        self._written_steps()

    def _training_loaders(self) -> list[str]:
        watch = self.loaders
        return [key for key in watch.loaders if key == watch.primary or (watch.gap_share(key) >= 0.5)]

    def _written_loader(self, primary: Any) -> None:
        session = self.session
        knobs = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
        if primary is None or primary.fetches <= 1:
            reason = NO_LOADER if primary is None else "the loader is fetched once only: its batch is all the data"
            session.left_out.update(dict.fromkeys(knobs, reason))
            return
        session.left_out.update(primary.refused)
        for knob in knobs:
            if primary.written[knob] is not None:
                session.as_written[knob] = primary.written[knob]

    def _written_modules(self) -> None:
        session, modules, torch = self.session, self.modules, self.torch
        written, left_out = session.as_written, session.left_out
        if not modules.covered_backwards:
            reason = "the training loss doesn't come out of a call of a torch module"
            left_out.update(precision=reason, compile=reason, channels_last=reason)
        else:
            written.update(precision="fp32", compile="off", channels_last=modules.weights_channels_last)
            if modules.script_autocast or self.steps.scaled_by_script:
                left_out["precision"] = "the script uses autocast or a GradScaler itself"
            elif modules.parameter_dtypes - {"float32"}:
                left_out["precision"] = f"the parameters are {', '.join(sorted(modules.parameter_dtypes))}"
            if modules.script_compiled:
                left_out["compile"] = "the script calls torch.compile itself"
            if not modules.has_conv2d:
                left_out["channels_last"] = "the model has no two-dimensional convolution"
        written["threads"] = torch.get_num_threads()
        written["cudnn_benchmark"] = bool(torch.backends.cudnn.benchmark)
        if self.cuda and torch.get_float32_matmul_precision() != "highest":
            written["precision"] = "tf32"

    def _written_steps(self) -> None:
        session, steps = self.session, self.steps
        written, left_out = session.as_written, session.left_out
        accumulated = round(steps.backwards / max(1, steps.steps))
        by_trainer = "grad_accumulation" in session.trainer_options
        written["grad_accumulation"] = 1
        reason = ""
        if not steps.stepped:
            reason = "no torch optimizer takes the steps"
        elif steps.together > 1:
            reason = f"{steps.together} optimizers share one loop: their gradients can't be told apart"
        elif by_trainer:
            pass  # the trainer knows how to, whatever its loop looks like from here
        elif steps.closures:
            reason = "the optimizer calls the script's closure"
        elif accumulated > 1 and steps.factor == 1:
            written["grad_accumulation"] = accumulated
            reason = "the script accumulates gradients itself"
        elif steps.losses.reduction in ("unknown", "count"):
            reason = "how the loss depends on the batch can't be read from its graph"
        if reason:
            left_out["grad_accumulation"] = reason
        offered = frozenset.intersection(*(x.offered for x in steps.stepped)) if steps.stepped else frozenset()
        if not offered:
            left_out["optimizer"] = "no optimizer of the script has a fused or foreach implementation"
        else:
            written["optimizer"] = steps.stepped[0].implementation
            session.facts["optimizer_choices"] = sorted(offered)

    def _precisions(self) -> list[str]:
        if not self.cuda:
            # fp16 on a CPU is emulated: a convolution was seen to take 60 times as long. It isn't offered.
            return ["fp32", "bf16"]
        bf16 = ["bf16"] if self.torch.cuda.is_bf16_supported() else []
        tf32 = ["tf32"] if self.torch.cuda.get_device_capability()[0] >= 8 else []
        return ["fp32", *tf32, *bf16, "fp16"]

    def _is_exact(self) -> bool:
        """Whether matrix products are seen to be taken in full float32."""
        matmul, cudnn = self.torch.backends.cuda.matmul, self.torch.backends.cudnn
        tf32 = self.cuda and (matmul.allow_tf32 or cudnn.allow_tf32)
        return self.modules.observed_dtype in ("float32", "float64") and not tf32

    # evidence

    def _observe_knobs(self) -> None:
        self._loader_evidence()
        self._module_evidence()
        self._step_evidence()
        self.steps.rates.observe()
        session, torch = self.session, self.torch
        if "threads" in session.config:
            self._compare("threads", torch.get_num_threads())
        if "cudnn_benchmark" in session.config:
            self._compare("cudnn_benchmark", bool(torch.backends.cudnn.benchmark))

    def _compare(self, knob: str, observed: Any, *, sites: int = 1, changed: int = 1, why: str = "") -> None:
        requested = self.session.config[knob]
        same = observed == requested
        reason = "" if same else why or f"observed {observed}: something in the script set it back"
        if same and not self.session.wants(knob):
            sites, changed, reason = 0, 0, "by an option of the script or of its trainer"
        evidence = "verified" if same else "contradicted"
        if not same and self._is_argument(knob):
            evidence, reason = "unverifiable", f"observed {observed}; what the script makes of its argument is its own"
        self.session.knob(knob, evidence, sites=sites, changed=changed, observed=observed, reason=reason)

    def _is_argument(self, knob: str) -> bool:
        """Whether the user bound the knob to an argument, whose words and meaning are the script's."""
        return knob in (self.session.knowledge.get("placeholders") or ())

    def _loader_evidence(self) -> None:
        session = self.session
        entry = self.loaders.loaders.get(self.loaders.primary or "")
        for knob in ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers"):
            if knob not in session.config:
                continue
            if entry is None:
                if session.wants(knob):
                    session.knob(knob, "not applicable", sites=0, changed=0, reason=NO_LOADER)
                elif self.steps.steps or self.steps.backwards:
                    session.knob(knob, "unverifiable", sites=0, changed=0, reason="taken by the script's own option")
                continue
            if session.wants(knob) and knob in entry.refused:
                session.knob(knob, "not applicable", changed=0, reason=entry.refused[knob])
                continue
            if knob == "pin_memory" and not self.torch.cuda.is_available():
                session.knob(knob, "not applicable", changed=0, reason="there is no GPU to pin batches for")
                continue
            trains = [self.loaders.loaders[key] for key in {self.loaders.primary or "", *self._training_loaders()}]
            changed = sum(knob in loader.changed for loader in trains)
            self._compare(knob, self._seen_of_loader(entry, knob), sites=len(trains), changed=changed)

    def _seen_of_loader(self, entry: Any, knob: str) -> Any:
        if knob == "batch_size":
            return max(entry.sizes, key=lambda size: entry.sizes[size]) if entry.sizes else 0
        if knob == "pin_memory":
            return bool(entry.live.get("pinned"))
        return entry.live.get(knob)

    def _module_evidence(self) -> None:
        session, modules = self.session, self.modules
        reached = modules.covered_backwards >= 0.9 * max(1, self.steps.backwards)
        unreached = "fewer than 90% of the backwards follow a call of a torch module"
        if "precision" in session.config:
            wanted = _dtype_of(session.config["precision"])
            if not reached and session.wants("precision"):
                session.knob("precision", "contradicted", reason=unreached)
            elif not modules.observed_dtype or not wanted:
                seen = modules.observed_dtype or "no linear or convolutional layer"
                session.knob("precision", "unverifiable", reason=f"{seen} was seen", observed=modules.observed_dtype)
            else:
                same = modules.observed_dtype == wanted
                different = "unverifiable" if self._is_argument("precision") else "contradicted"
                session.knob(
                    "precision", "verified" if same else different, observed=modules.observed_dtype,
                    reason="" if same else f"the first layer gave {modules.observed_dtype}",
                )  # fmt: skip
        if "channels_last" in session.config:
            if modules.observed_layout is None:
                session.knob("channels_last", "unverifiable", reason="no convolution with several input channels ran")
            else:
                self._compare("channels_last", modules.observed_layout)
        if session.config.get("compile") in NOT_COMPILED:
            self._compare("compile", session.config["compile"] if not _counters()[0] else "on")
        elif "compile" in session.config:
            graphs, _, breaks = _counters()
            good = graphs > 0 and reached
            reason = f"{graphs} graphs, {breaks} breaks" if good else (unreached if graphs else _why_not_compiled())
            session.knob(
                "compile", "verified" if good else "contradicted", sites=modules.compiled_roots, reason=reason,
                observed=graphs,
            )  # fmt: skip

    def _step_evidence(self) -> None:
        session, steps = self.session, self.steps
        if "grad_accumulation" in session.config:
            observed = round(steps.backwards / max(1, steps.steps))
            kept = steps.factor == 1 or (steps.boundaries and steps.kept_gradients >= 0.99 * steps.boundaries)
            why = "" if kept else "gradients don't survive between micro-batches: the script clears them itself"
            self._compare("grad_accumulation", observed if kept else f"{observed}, cleared", why=why)
        if "optimizer" in session.config:
            self._implementation_evidence(session.config["optimizer"])

    def _implementation_evidence(self, chosen: str) -> None:
        stepped = self.steps.stepped
        lacking = sorted({x.name for x in stepped if chosen not in x.offered})
        if lacking or not stepped:
            reason = f"{', '.join(lacking)} has no {chosen} implementation" if lacking else "no torch optimizer steps"
            self.session.knob("optimizer", "not applicable", sites=len(stepped), changed=0, reason=reason)
            return
        observed = ", ".join(sorted({x.implementation for x in stepped}))
        changed = sum(x.implementation == chosen for x in stepped)
        self._compare("optimizer", observed, sites=len(stepped), changed=changed)


def _dtype_of(word: Any) -> str:
    """The dtype that a precision means, in our words or in a script's own; "" for words that nobody knows."""
    plain = str(word).lower().removeprefix("torch.").removesuffix("-mixed").removesuffix("-true")
    return next((dtype for dtype, words in DTYPE_WORDS.items() if plain in words), "")


def _why_not_compiled() -> str:
    dynamo = sys.modules.get("torch._dynamo.utils")
    breaks = list(dynamo.counters["graph_break"]) if dynamo is not None else []
    told = str(breaks[0]).strip().splitlines() if breaks else []
    return f"nothing was compiled: {told[0]}" if told else "nothing was compiled"


def _counters() -> tuple[int, float, int]:
    """Graphs compiled, seconds spent on it, graph breaks; zeros as long as nothing has imported the compiler."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0, 0.0, 0
    stats = dynamo.counters
    times = getattr(dynamo, "compilation_time_metrics", {})
    seconds = sum(times.get("_compile.compile_inner", ())) if times else 0.0
    return int(stats["stats"]["unique_graphs"]), float(seconds), sum(stats["graph_break"].values())


def _cache_counts() -> tuple[int, int]:
    """Graphs that came out of Inductor's cache on disk, and graphs that had to be compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counts = dynamo.counters["inductor"] if dynamo is not None else {}
    misses = counts.get("fxgraph_cache_miss", 0) + counts.get("fxgraph_cache_bypass", 0)
    return int(counts.get("fxgraph_cache_hit", 0)), int(misses)
