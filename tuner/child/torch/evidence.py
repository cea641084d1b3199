"""What the watches on PyTorch saw, as facts of the script and as evidence for each knob."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .. import allocator
from ..evidence import Finding, number_format
from ..records import Compile, Evidence
from . import compiler
from .compiling import CUDA_GRAPHS, DYNAMIC, NOT_COMPILED, compile_finding
from .loader_facts import DATA_CHANGE, NO_LOADER, LoaderFacts
from .loader_places import LOADER_KNOBS, Loader
from .modules import EXACT, NOT_ROUNDED, ROUNDINGS
from .parts import KNOB as ACCUMULATION
from .watches import FRAMEWORK, TorchWatches

ONE_GRAPH = "XLA compiles the step as one graph, which parts of its batch would only make longer"
LAID = "the script lays its model in channels-last itself, and would again"
LAID_OTHERWISE = "most convolutions were given the usual layout, as by what comes before them (InstanceNorm does it)"
FEWER, FEWEST_STEPS = 0.8, 8
"""So small a share of the gradients of an optimizer step as written is fewer, over at least so many steps of each."""
UNREACHED = "fewer than 90% of the backwards follow a call of a torch module"


class Observation:
    """Made once, when the window or the script has ended."""

    def __init__(self, watches: TorchWatches) -> None:
        self.session = watches.session
        self.torch = watches.torch
        self.watches = watches
        self.sources = watches.loaders.sources
        self.loader_facts = LoaderFacts(watches.session, watches.torch, watches.loaders)
        self.modules = watches.modules
        self.steps = watches.steps

    def observe(self) -> None:
        """Facts and evidence. What goes wrong here is noted: the figures stand all the same."""
        if self._trained_elsewhere():
            return
        self.session.knobs.look(self._looks(), self.session.note)
        self.watches.ranks.observe()

    def _looks(self) -> Iterator[Callable[[], None]]:
        """Each by itself: what goes wrong in one costs no other."""
        yield from (self._device, self._script, self._loaders_evidence, self._module_evidence, self._step_evidence)
        yield from (self.watches.ddp.report, self.watches.xla_loaders.options.report, self.steps.rates.observe)
        if self.sources.primary is None:
            yield self.watches.own_batches.observe
        yield from (self.steps.trajectory.report, self._settings_evidence)
        yield lambda: allocator.report(self.session.knobs)

    def _trained_elsewhere(self) -> bool:
        """Whether no parameter was on the study's device: its figures would tell of another one.

        Where neither modules nor optimizers show any, the losses tell.
        """
        device = self.session.device
        places = self.modules.parameter_devices | self.steps.devices or self.steps.loss_devices
        if not places or device.torch_type in places:
            return False
        where, wanted = ", ".join(sorted(places)), device.torch_type
        self.session.fail(
            "unsupported", f"the script trains on {where}, not on {self.session.device.label}: move its model and its "
            f"batches to {wanted!r}, or study it with --device {where}",
        )  # fmt: skip
        return True

    def _device(self) -> None:
        session, counts = self.session, compiler.counts()
        if counts.graphs > self.watches.compiled_turns.graphs:
            hits, misses = compiler.cache_counts()
            session.recorder.emit(Compile(counts.graphs, counts.seconds, counts.breaks, hits, misses))
        memory = session.device.torch_memory(self.torch, session.request.used_device_bytes)
        if memory is not None:
            session.recorder.emit(memory)
            if memory.retries:
                full = f"the device's memory is nearly full: it had to be cleared {memory.retries} times to go on"
                session.note(full)
                session.facts.remark(full)

    # facts

    def _script(self) -> None:
        facts, steps, primary = self.session.facts, self.steps, self.sources.primary
        countable = primary.fetches > 1 if primary is not None else self.watches.own_batches.counts
        if countable and self.loader_facts.data_change():
            countable = False
            if self.session.request.knowledge.unit == "samples":
                why = f"its samples can't be counted as those of the script as written: {DATA_CHANGE}"
                self.session.fail("unsupported", why)
            else:
                facts.remark(f"steps are counted, and not samples: {DATA_CHANGE}")
        facts.framework, facts.framework_version = FRAMEWORK, str(self.torch.__version__)
        facts.unit = "samples" if countable else "steps"
        self.loader_facts.written()
        facts.optimizers = [x.name for x in steps.stepped]
        facts.backwards, facts.optimizer_steps = steps.backwards, steps.steps
        facts.precisions = self.session.device.torch_precisions(self.torch)
        facts.emulated_precisions = self.session.device.emulated_precisions()
        facts.loss_reduction, facts.batch_norm = steps.losses.reduction, self.modules.has_batch_norm
        steps.scalers.settle()
        facts.gradient_scaler = steps.scalers.counts()
        self._written_modules()
        self._written_steps()
        if steps.evaluations:
            self._evaluated()
        self.watches.ddp.written()
        if self.session.device.torch_type == "xla":
            self.watches.xla_loaders.options.written()
        steps.trajectory.observe()

    def _evaluated(self) -> None:
        """Of an optimizer that evaluates its loss several times in a step. How often hangs on the losses: one that ends
        its search earlier, as where they are rounded, takes more samples a second by computing less.
        """
        steps, request, known = self.steps, self.session.request, self.session.request.knowledge
        self.session.facts.remark(
            "its optimizer evaluates its loss several times in each of its steps: each evaluation counts as a step here"
        )
        is_rated = request.config and known.unit == "samples" and not (request.window.until_samples or request.probe)
        is_alike = len(steps.stepped) == len(known.optimizers) == 1  # and not the one of several that trains by now
        if not (is_rated and is_alike) or min(steps.steps, known.optimizer_steps) < FEWEST_STEPS:
            return
        own, written = steps.backwards / steps.steps, known.backwards / known.optimizer_steps
        if own < FEWER * written:
            self.session.fail(
                "unsupported", f"its optimizer takes {own:.3g} gradients in each of its steps, as written"
                f" {written:.3g}: its samples take less work",
            )  # fmt: skip

    def _written_modules(self) -> None:
        modules, torch = self.modules, self.torch
        written, left_out = self.session.facts.as_written, self.session.facts.left_out
        if not modules.covered_backwards:
            reason = "the training loss doesn't come out of a call of a torch module"
            left_out.update(precision=reason, compile=reason, channels_last=reason)
        else:
            written.update(precision="fp32", compile="off", channels_last=modules.weights_channels_last)
            if modules.script_autocast or self.steps.scaled_by_script:
                left_out["precision"] = "the script uses autocast or a GradScaler itself"
            elif modules.parameter_dtypes - {"float32"}:
                left_out["precision"] = f"the parameters are {', '.join(sorted(modules.parameter_dtypes))}"
            self.session.facts.compile_choices = modules.compile_choices
            if modules.own_compile.called:
                left_out["compile"] = "the script calls torch.compile itself"
            if not modules.has_conv2d:
                left_out["channels_last"] = "the model has no two-dimensional convolution"
            elif modules.weights_channels_last and self.session.is_as_written:
                left_out["channels_last"] = LAID
        modules.attention.written(compiled=modules.own_compile.called)
        modules.checkpointing.written(compiled=modules.own_compile.called)
        modules.own_compile.written()
        written.update(threads=torch.get_num_threads(), allocator=allocator.in_use() or None)
        written["cudnn_benchmark"] = bool(torch.backends.cudnn.benchmark)
        if modules.covered_backwards and not modules.convolutions.seen:
            left_out["cudnn_benchmark"] = "no module that was called convolves"
        if torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
            left_out["cudnn_benchmark"] = "the script asks for deterministic algorithms"
        rounded = self.session.device.torch_rounded
        if self.session.device.torch_rounding(torch).matmul and rounded in self.session.facts.precisions:
            written["precision"] = rounded

    def _written_steps(self) -> None:
        facts, steps = self.session.facts, self.steps
        backwards = round(steps.backwards / max(1, steps.steps + steps.evaluations))
        facts.as_written[ACCUMULATION] = 1
        if ACCUMULATION in self.session.knobs.trainer_options:
            pass  # the trainer knows how to, whatever its loop looks like from here
        elif backwards > 1 and steps.stepped and steps.together <= 1:
            facts.as_written[ACCUMULATION] = self._batches_of_step(backwards)
            facts.left_out[ACCUMULATION] = "the script takes several backwards to a step itself"
        elif not self._reached():
            facts.left_out[ACCUMULATION] = "the training loss doesn't come out of a call of a torch module"
        elif self.session.device.torch_type == "xla":
            facts.left_out[ACCUMULATION] = ONE_GRAPH
        elif self.modules.parts.obstacle():
            facts.left_out[ACCUMULATION] = self.modules.parts.obstacle()
        offered = frozenset.intersection(*(x.offered for x in steps.stepped)) if steps.stepped else frozenset()
        offered -= {self.session.device.torch_optimizer_default}
        if not offered:
            facts.left_out["optimizer"] = "no optimizer of the script has a fused or foreach implementation"
        else:
            facts.as_written["optimizer"] = steps.stepped[0].implementation
            facts.optimizer_choices = sorted(offered)

    # evidence

    def _loaders_evidence(self) -> None:
        for knob in LOADER_KNOBS:
            if knob in self.session.knobs.requested:
                self._loader_evidence(knob)

    def _settings_evidence(self) -> None:
        knobs, torch = self.session.knobs, self.torch
        if "threads" in knobs.requested:
            knobs.compare("threads", torch.get_num_threads())
        if "cudnn_benchmark" in knobs.requested:
            knobs.compare("cudnn_benchmark", bool(torch.backends.cudnn.benchmark))

    def _loader_evidence(self, knob: str) -> None:
        knobs, primary = self.session.knobs, self.sources.primary
        if primary is not None:
            self.loader_facts.evidence(knob, primary, self._size_of_pass(primary))
        elif knobs.wants(knob):
            knobs.inapplicable(knob, NO_LOADER, sites=0)
        elif self.steps.steps or self.steps.backwards:
            reason = "taken by the script's own option"
            knobs.report(knob, Finding(Evidence.UNVERIFIABLE, reason, sites=0, changed=0))

    def _size_of_pass(self, loader: Loader) -> object:
        """Samples in one forward pass."""
        parts = self.modules.parts.observed
        return loader.usual_size // parts if loader.usual_size % parts == 0 else loader.usual_size / parts

    def _reached(self) -> bool:
        """Whether calls of modules that train precede the backwards: what is done around such calls reaches them."""
        return self.modules.covered_backwards >= 0.9 * max(1, self.steps.backwards)

    def _module_evidence(self) -> None:
        knobs, modules = self.session.knobs, self.modules
        reached = self._reached()
        if "precision" in knobs.requested:
            self._precision_evidence(reached)
        if "channels_last" in knobs.requested:
            if modules.observed_layout is None:
                reason = "no convolution with several input channels ran"
                knobs.report("channels_last", Finding(Evidence.UNVERIFIABLE, reason))
            else:
                why = "" if modules.observed_layout else LAID_OTHERWISE
                knobs.compare("channels_last", modules.observed_layout, why=why)
        modules.attention.report()
        modules.checkpointing.report()
        modules.own_compile.report()
        if knobs.requested.get("compile") in NOT_COMPILED:
            knobs.compare("compile", knobs.requested["compile"] if not compiler.counts().graphs else "on")
        elif "compile" in knobs.requested:
            self._compile_evidence(reached)

    def _precision_evidence(self, reached: bool) -> None:
        knobs, seen = self.session.knobs, self.modules.observed_dtype
        requested = knobs.requested["precision"]
        wanted = number_format(requested)
        if not reached and knobs.wants("precision"):
            knobs.report("precision", Finding(Evidence.CONTRADICTED, UNREACHED))
        elif not seen or not wanted:
            reason = f"{seen or 'no linear or convolutional layer'} was seen"
            knobs.report("precision", Finding(Evidence.UNVERIFIABLE, reason, seen))
        elif requested in ROUNDINGS and seen == "float32":
            self._rounding_evidence(str(requested))
        elif seen == wanted:
            knobs.report("precision", Finding(Evidence.VERIFIED, "", seen))
        else:
            knobs.compare("precision", seen, why=f"the first layer gave {seen}")

    def _rounding_evidence(self, requested: str) -> None:
        """How products of float32 are taken, in the words of the knob; of convolutions only where there are any."""
        device = self.session.device
        rounding, rounded = device.torch_rounding(self.torch), device.torch_rounded
        kinds = {rounding.matmul, rounding.convolution} if self.modules.has_conv2d else {rounding.matmul}
        observed = f"{EXACT} and {rounded}" if len(kinds) > 1 else (EXACT, rounded)[kinds.pop()]
        if observed == requested == rounded and not device.torch_seen_rounding(self.torch):
            self.session.knobs.compare("precision", EXACT, why=NOT_ROUNDED)
        else:
            self.session.knobs.compare("precision", observed)

    def _compile_evidence(self, reached: bool) -> None:
        knobs, compiled = self.session.knobs, self.modules.compiled
        requested = knobs.requested["compile"]
        if compiler.counts().graphs and not reached:
            sites = sum(calls.of - calls.silent for calls in compiled)
            finding = Finding(Evidence.CONTRADICTED, UNREACHED, compiler.counts().graphs, sites)
        else:
            finding = compile_finding(compiled, only_graphs=requested == CUDA_GRAPHS)
        if requested == DYNAMIC and finding.evidence is Evidence.VERIFIED:
            finding = self._dynamic_finding(finding)
        knobs.report("compile", finding)

    def _dynamic_finding(self, compiled: Finding) -> Finding:
        """Whether other shapes took what was compiled for the first ones, where others came."""
        told = [shapes.recompiled() for shapes in self.modules.shapes]
        if True in told:
            reason = f"each further shape was compiled for by itself: {compiled.reason}"
            return Finding(Evidence.CONTRADICTED, reason, compiled.observed, compiled.sites)
        if False in told:
            return compiled
        reason = f"no two shapes came after it was compiled: {compiled.reason}"
        return Finding(Evidence.UNVERIFIABLE, reason, compiled.observed, compiled.sites)

    def _step_evidence(self) -> None:
        knobs, steps = self.session.knobs, self.steps
        if knobs.wants(ACCUMULATION):
            sites, changed = self.modules.parts.sites
            observed, why = self._parts_seen(), self.modules.parts.obstacle()
            knobs.compare(ACCUMULATION, observed, sites=sites, changed=changed, why=why)
        elif ACCUMULATION in knobs.requested:
            knobs.compare(ACCUMULATION, self._batches_of_step(round(steps.backwards / max(1, steps.steps))))
        if "optimizer" in knobs.requested:
            self._implementation_evidence(str(knobs.requested["optimizer"]))

    def _batches_of_step(self, backwards: int) -> int:
        """Of so many backwards to a step: those of one batch, as of two losses, count once."""
        steps, primary = self.steps, self.sources.primary
        if primary is None:
            return backwards
        return min(backwards, max(1, round(primary.fetches / max(1, steps.steps + steps.evaluations))))

    def _parts_seen(self) -> object:
        """In how many parts the batches were computed that were asked for."""
        parts, primary = self.modules.parts.observed, self.sources.primary
        asked = self.watches.loaders.values_for(primary).get("batch_size") if primary is not None else None
        if primary is None or asked is None or primary.usual_size == asked:
            return parts
        return f"{parts}, of batches of {primary.usual_size} instead of {asked}"

    def _implementation_evidence(self, chosen: str) -> None:
        stepped, knobs = self.steps.stepped, self.session.knobs
        lacking = sorted({x.name for x in stepped if chosen not in x.offered})
        if lacking or not stepped:
            reason = f"{', '.join(lacking)} has no {chosen} implementation" if lacking else "no torch optimizer steps"
            knobs.inapplicable("optimizer", reason, sites=len(stepped))
            return
        observed = ", ".join(sorted({x.implementation for x in stepped}))
        changed = sum(x.implementation == chosen for x in stepped)
        knobs.compare("optimizer", observed, sites=len(stepped), changed=changed)
