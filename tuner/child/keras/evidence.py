"""What the watches on Keras and TensorFlow saw, as facts and evidence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..tensorflow.graphs import is_compiled, products, xla_threads
from ..tensorflow.strategies import DEFAULT, NO_STRATEGY
from .fit import FRAMEWORK, FitWatch
from .model import POLICIES, accumulation_of, compute_dtypes, has_batch_norm, inner_optimizer, reduction_of

PRECISION_OF = {policy: word for word, policy in POLICIES.items()}
COMPUTES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BATCH_REASONS = {
    "pydataset": "the script's PyDataset makes its batches itself",
    "generator": "the script's generator makes its batches itself",
    "loader": "a torch DataLoader makes the batches",
}
OWN_LOSS = "how the loss of the script's own training step depends on the batch is unknown"
OWN_RATE = "a LearningRateScheduler sets the rate"


class Observation:
    """Made once, when the window has ended."""

    def __init__(self, adapter: Any) -> None:
        self.session = adapter.session
        self.adapter = adapter
        self.fits: FitWatch | None = adapter.fits if adapter.fits is not None and adapter.fits.calls else None

    def observe(self) -> None:
        """Facts and evidence. What goes wrong here is noted: the figures stand all the same."""
        for part in (self._script, self._data, self._device, self._knobs):
            try:
                part()
            except Exception as error:
                self.session.note(f"observation failed: {type(error).__name__}: {error}")

    def _script(self) -> None:
        session, adapter = self.session, self.adapter
        session.facts.update(
            framework=FRAMEWORK, framework_version=(adapter.keras or adapter.tf).__version__,
            unit="samples" if session.clock.total_samples else "steps", precisions=self._precisions(),
            backend=adapter.fits.backend if adapter.fits is not None else "tensorflow",
        )  # fmt: skip
        session.as_written.update(threads=self._threads("intra"), inter_op_threads=self._threads("inter"))
        self._policy()
        self._strategy()
        if self.fits is not None:
            self._fit(self.fits)
        elif adapter.optimizers is not None and adapter.optimizers.made:
            session.as_written.update(grad_accumulation=1, lr_scale=1.0)
            session.left_out["grad_accumulation"] = OWN_LOSS
            session.facts.update(optimizers=adapter.optimizers.made, loss_reduction="unknown")

    def _data(self) -> None:
        """The datasets first: a loop may know better what reached its step."""
        datasets, loops = self.adapter.datasets, self.adapter.loops
        if datasets is None:
            return
        if self.fits is not None and self.fits.kind == "dataset" and self.fits.largest_batch:
            datasets.saw_batch(self.fits.largest_batch)
        elif self.fits is None and loops is not None:
            loops.sources.meet_training()
        if self.fits is None or self.fits.kind == "dataset":
            datasets.observe()
        if self.fits is None and loops is not None:
            loops.observe()

    def _device(self) -> None:
        tf = self.adapter.tf
        if not self.adapter.cuda or tf is None:
            return
        if not tf.config.list_logical_devices("GPU"):
            self.session.fail("unsupported", "TensorFlow sees no GPU here: the steps ran on the CPU")
            return
        card = tf.config.list_physical_devices("GPU")[0]
        self.session.as_written["memory_growth"] = bool(tf.config.experimental.get_memory_growth(card))
        info = tf.config.experimental.get_memory_info("GPU:0")
        self.session.recorder.emit("memory", reserved=info["peak"], allocated=info["peak"], overhead=0)

    def _threads(self, kind: str) -> int:
        threading = self.adapter.tf.config.threading if self.adapter.tf is not None else None
        told = getattr(threading, f"get_{kind}_op_parallelism_threads")() if threading is not None else 0
        return told or len(os.sched_getaffinity(0))

    def _precisions(self) -> list[str]:
        # fp16 on a CPU is emulated: a convolution was seen to take 60 times as long. It isn't offered.
        return ["fp32", "bf16", "fp16"] if self.adapter.cuda else ["fp32", "bf16"]

    def _policy(self) -> None:
        policy = self.adapter.policy
        self.session.as_written["precision"] = PRECISION_OF.get(policy.chosen_by_script, "fp32")
        if policy.chosen_by_script:
            self.session.left_out["precision"] = f"the script chooses the policy {policy.chosen_by_script} itself"
        elif not policy.asked:
            self.session.left_out["precision"] = "no layer of Keras computes in the training step"

    def _strategy(self) -> None:
        strategies, session = self.adapter.strategies, self.session
        if strategies is None or session.facts["backend"] != "tensorflow":
            session.left_out["strategy"] = f"Keras computes with {session.facts['backend']} here"
            return
        session.as_written["strategy"], reason = strategies.written()
        if reason or (self.fits is None and session.as_written["strategy"] == DEFAULT):
            session.left_out["strategy"] = reason or NO_STRATEGY

    # fit

    def _fit(self, fits: FitWatch) -> None:
        session, model = self.session, fits.model
        session.facts.update(
            trainer="keras", fed_by=fits.kind, optimizers=[type(inner_optimizer(model)).__name__],
            training_loaders=["fit"],
            batch_norm=has_batch_norm(model), retraces=max(0, fits.traces() - 1),
            loss_reduction="unknown" if fits.custom_step else reduction_of(model),
        )  # fmt: skip
        if fits.dataset_len is not None:
            session.facts["dataset_len"] = fits.dataset_len
        session.as_written.update(fits.written)
        by_script = self.adapter.optimizers.accumulated_by_script if self.adapter.optimizers is not None else 0
        session.as_written.update(grad_accumulation=by_script or 1, lr_scale=1.0)
        self._leave_out(fits)
        self._remark_on(fits)

    def _leave_out(self, fits: FitWatch) -> None:
        session, left_out = self.session, self.session.left_out
        if fits.kind in BATCH_REASONS:
            left_out["batch_size"] = BATCH_REASONS[fits.kind]
        if fits.sets_rate:
            left_out["lr_scale"] = OWN_RATE
        if fits.custom_step:
            left_out["grad_accumulation"] = OWN_LOSS
        elif session.facts["loss_reduction"] != "mean":
            left_out["grad_accumulation"] = f"the loss is no mean over the batch ({session.facts['loss_reduction']})"
        if session.as_written["grad_accumulation"] > 1:
            left_out["grad_accumulation"] = "the script accumulates gradients itself"
        if fits.backend == "torch":
            left_out["steps_per_execution"] = "Keras has it on TensorFlow and JAX only"
        if fits.backend != "tensorflow":
            for knob in ("threads", "inter_op_threads"):
                left_out[knob] = f"Keras computes with {fits.backend} here"

    def _remark_on(self, fits: FitWatch) -> None:
        steps = int(fits.model.steps_per_execution)
        if fits.backend == "tensorflow" and steps > 1:
            self.session.hide_wait(f"{steps} steps are taken in one call")
        traces = fits.traces()
        if fits.calls >= 20 and traces > max(4, fits.calls // 4):
            self.session.remark(
                f"the training step was traced anew {traces} times in {fits.calls} calls: batches of ever new shapes,"
                " or Python values where tensors were meant"
            )

    # evidence

    def _knobs(self) -> None:
        config, fits = self.session.config, self.fits
        for knob, kind in (("threads", "intra"), ("inter_op_threads", "inter")):
            if knob in config:
                self._compare(knob, self._threads(kind))
        if "memory_growth" in config:
            self._compare("memory_growth", self.session.as_written.get("memory_growth"))
        if "strategy" in config and self.adapter.strategies is not None:
            self._compare("strategy", self.adapter.strategies.in_use(fits.model if fits is not None else None))
        if "precision" in config:
            self._precision_evidence()
        if "lr_scale" in config:
            self._rate_evidence()
        if fits is None:
            return
        seen: dict[str, Callable[[], Any]] = {
            "run_eagerly": lambda: fits.model.run_eagerly,
            "steps_per_execution": lambda: fits.model.steps_per_execution,
            "workers": lambda: fits.workers,
            "grad_accumulation": lambda: accumulation_of(fits.model),
            **({"batch_size": lambda: fits.largest_batch} if fits.kind == "arrays" else {}),
        }
        for knob, look in seen.items():
            if knob in config:
                self._compare(knob, look())
        if "jit_compile" in config:
            self._xla_evidence(fits)

    def _compare(self, knob: str, observed: Any, *, why: str = "") -> None:
        same = observed == self.session.config[knob]
        reason = "" if same else why or f"observed {observed}"
        self.session.knob(knob, "verified" if same else "contradicted", observed=observed, reason=reason)

    def _rate_evidence(self) -> None:
        optimizers = self.adapter.optimizers
        if self.fits is not None and self.fits.sets_rate:
            self.session.knob("lr_scale", "contradicted", reason=OWN_RATE)
        elif optimizers is None or not optimizers.scaled:
            self.session.knob("lr_scale", "not applicable", sites=0, changed=0, reason="no optimizer has a rate")
        else:
            self.session.knob("lr_scale", "verified", observed=self.session.config["lr_scale"])

    def _precision_evidence(self) -> None:
        """By the products of the traced step where there are any; a policy that no layer heeds shows there."""
        session = self.session
        wanted = COMPUTES.get(str(session.config["precision"]), "")
        if self.adapter.policy.chosen_by_script:
            session.knob("precision", "not applicable", changed=0, reason=session.left_out["precision"])
            return
        found = self._products()
        if not found:
            session.knob("precision", "unverifiable", reason="no product of matrices was seen in the training step")
            return
        most = max(found, key=lambda dtype: found[dtype])
        told = ", ".join(f"{count} in {dtype}" for dtype, count in found.items())
        session.knob(
            "precision", "verified" if most == wanted else "contradicted", sites=sum(found.values()),
            changed=found.get(wanted, 0), observed=most, reason="" if most == wanted else f"the step computes {told}",
        )  # fmt: skip

    def _products(self) -> dict[str, int]:
        if self.fits is None:
            return dict(self.session.facts.get("products") or {})
        found: Counter[str] = Counter()
        for graph in self.fits.graphs():
            found.update(products(self.adapter.tf, graph))
        return dict(found) or compute_dtypes(self.fits.model)

    def _xla_evidence(self, fits: FitWatch) -> None:
        wanted, took = bool(self.session.config["jit_compile"]), bool(fits.model.jit_compile)
        if took != wanted:
            self._compare("jit_compile", took, why="a layer of the model doesn't support XLA")
            return
        if fits.backend == "tensorflow":
            took = any(is_compiled(graph) for graph in fits.graphs())
            # A flag alone compiles nothing; on a CPU the threads of what was compiled can be seen.
            took = took and (self.adapter.cuda or xla_threads() > 0)
        self._compare("jit_compile", took, why="" if took == wanted else "no code of XLA's has run")
