"""Instruments Keras and TensorFlow: installs the watches, then turns what they saw into facts and evidence.

One adapter for all of Keras' backends: what differs between them lies below ``Model.fit``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import seeds, tf_files
from .keras_fit import FRAMEWORK, FitWatch, accumulation_of
from .keras_model import POLICIES, OptimizerWatch, PolicyWatch, compute_dtypes, has_batch_norm, reduction_of
from .session import Session

SUPPORTED = (3, 3)
PRECISION_OF = {policy: word for word, policy in POLICIES.items()}
COMPUTES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BATCH_REASONS = {
    "pydataset": "the script's PyDataset makes its batches itself",
    "generator": "the script's generator makes its batches itself",
    "loader": "a torch DataLoader makes the batches",
}


class KerasAdapter:
    """One trial's watches on Keras and TensorFlow. Either may be imported first, or alone."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.cuda = session.device.startswith("cuda")
        self.tf: Any = None
        self.keras: Any = None
        self.datasets: Any = None
        self.fits: FitWatch | None = None
        self.policy = PolicyWatch(session)
        self.optimizers: OptimizerWatch | None = None
        self._loss_read = (0.0, 0.0)
        self._loss_at = 0.0
        if session.measuring:
            session.observers.append(self._observe)

    def meet_tensorflow(self, tf: ModuleType) -> None:
        """Right after ``import tensorflow``, before its runtime starts."""
        session = self.session
        self.tf = tf
        session.recorder.emit("framework", name="tensorflow", version=tf.__version__, device=session.device)
        if session.seed is not None:
            seeds.install_tensorflow(session.seed, tf)
        if session.wants("threads"):
            tf.config.threading.set_intra_op_parallelism_threads(int(session.config["threads"]))
        if session.wants("inter_op_threads"):
            tf.config.threading.set_inter_op_parallelism_threads(int(session.config["inter_op_threads"]))
        self._cap_memory(tf)
        if session.measuring:
            tf_files.install(session, tf)

    def _cap_memory(self, tf: ModuleType) -> None:
        """A config that takes too much fails here, and no neighbour on the card does."""
        limit = self.session.request.get("max_device_bytes")
        cards = tf.config.list_physical_devices("GPU") if self.cuda else []
        if cards and limit and self.session.config:
            cap = tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)
            tf.config.set_logical_device_configuration(cards[0], [cap])

    def meet_keras(self, keras: ModuleType) -> None:
        """Right after ``import keras``. Raises ``RuntimeError`` for versions that weren't tried."""
        session = self.session
        version = tuple(int(part) for part in keras.__version__.split(".")[:2])
        if version < SUPPORTED:
            raise RuntimeError(f"keras {keras.__version__} is older than {SUPPORTED[0]}.{SUPPORTED[1]}")
        self.keras = keras
        session.recorder.emit("framework", name=FRAMEWORK, version=keras.__version__, device=session.device)
        if not session.may_be_of(FRAMEWORK):
            return
        self.policy.install()
        self.optimizers = OptimizerWatch(session, keras)
        self.optimizers.install()
        self.fits = FitWatch(session, keras, self.datasets)
        self.fits.on_entry = self._training_begins
        self.fits.on_epoch = self._epoch_begins
        self.fits.install()

    def _training_begins(self) -> None:
        """The clock listens to this adapter from here on: another framework may have been imported, too."""
        self.session.trained_by = self.session.trained_by or FRAMEWORK
        if self.session.measuring and self.session.may_be_of(FRAMEWORK):
            self.session.clock.synchronize = self._synchronize
            self.session.clock.activity = self._activity
            self.session.clock.on_block = self._on_block

    def _epoch_begins(self) -> None:
        self._loss_read = (0.0, 0.0)

    # the clock's questions

    def _synchronize(self) -> None:
        if self.cuda and self.tf is not None:
            self.tf.test.experimental.sync_devices()
        if self.fits is not None and self.fits.graph is not None:
            self.fits.graph.settle()

    def _activity(self) -> int:
        return self.fits.traces() if self.fits is not None else 0

    def _on_block(self) -> None:
        progress, self._loss_at = self._loss_at, self.session.clock.progress
        # Nothing was trained on since: what the model's metrics hold now is of its validation.
        loss = self._loss() if self._loss_at > progress else None
        if loss is None:
            return
        self.session.recorder.emit("loss", samples=self.session.clock.progress, value=loss)
        if not math.isfinite(loss):
            self.session.fail("nan", f"the training loss became {loss}")
            self.session.stop("the loss is not finite", complete=False)

    def _loss(self) -> float | None:
        """The training loss since the last time: Keras' own figure is a mean over the epoch so far."""
        fits = self.fits
        if fits is None or not fits.logs:
            return None
        # jax holds the metrics' state elsewhere while it trains.
        tracker = _loss_tracker(fits.model) if fits.backend != "jax" else None
        if tracker is not None:
            total, count = float(tracker.total), float(tracker.count)
            before, self._loss_read = self._loss_read, (total, count)
            return (total - before[0]) / (count - before[1]) if count > before[1] else None
        name = next((name for name in ("loss", *fits.logs) if name in fits.logs and "loss" in name), None)
        return None if name is None else float(fits.logs[name])

    # what was seen

    def _observe(self) -> None:
        if self.session.trained_by != FRAMEWORK:
            return
        for observe in (self._observe_script, self._observe_device, self._observe_knobs):
            try:
                observe()
            except Exception as error:
                self.session.note(f"observation failed: {type(error).__name__}: {error}")

    def _observe_device(self) -> None:
        if not self.cuda or self.tf is None or not self.tf.config.list_logical_devices("GPU"):
            return
        info = self.tf.config.experimental.get_memory_info("GPU:0")
        self.session.recorder.emit("memory", reserved=info["peak"], allocated=info["peak"], overhead=0)

    def _observe_script(self) -> None:
        session, fits = self.session, self.fits
        clock = session.clock
        session.facts.update(
            framework=FRAMEWORK, framework_version=(self.keras or self.tf).__version__,
            unit="samples" if clock.total_samples else "steps", precisions=self._precisions(),
        )  # fmt: skip
        session.as_written["threads"] = self._threads()
        session.as_written["inter_op_threads"] = self._inter_op_threads()
        if fits is not None and fits.model is not None:
            self._observe_fit(fits)

    def _threads(self) -> int:
        told = self.tf.config.threading.get_intra_op_parallelism_threads() if self.tf is not None else 0
        return told or len(os.sched_getaffinity(0))

    def _inter_op_threads(self) -> int:
        told = self.tf.config.threading.get_inter_op_parallelism_threads() if self.tf is not None else 0
        return told or len(os.sched_getaffinity(0))

    def _precisions(self) -> list[str]:
        # fp16 on a CPU is emulated: a convolution was seen to take 60 times as long. It isn't offered.
        return ["fp32", "bf16", "fp16"] if self.cuda else ["fp32", "bf16"]

    def _observe_fit(self, fits: FitWatch) -> None:
        session, model = self.session, fits.model
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        session.facts.update(
            backend=fits.backend, trainer="keras", training_loaders=["fit"], fed_by=fits.kind,
            optimizers=[type(optimizer).__name__], batch_norm=has_batch_norm(model), retraces=fits.traces(),
            loss_reduction="unknown" if fits.custom_step else reduction_of(model),
        )  # fmt: skip
        rows = fits.written.pop("dataset_len", None)
        if rows is not None:
            session.facts["dataset_len"] = rows
        session.as_written.update(fits.written)
        by_script = self.optimizers.accumulated_by_script if self.optimizers is not None else 0
        session.as_written.update(grad_accumulation=by_script or 1, lr_scale=1.0)
        self._leave_out(fits)
        self._note_retracing(fits)

    def _leave_out(self, fits: FitWatch) -> None:
        session, left_out = self.session, self.session.left_out
        policy = self.policy.chosen_by_script
        session.as_written["precision"] = PRECISION_OF.get(policy, "fp32")
        if policy:
            left_out["precision"] = f"the script chooses the policy {policy} itself"
        if fits.kind in BATCH_REASONS:
            left_out["batch_size"] = BATCH_REASONS[fits.kind]
        if fits.sets_rate:
            left_out["lr_scale"] = "a LearningRateScheduler sets the rate"
        if fits.custom_step:
            left_out["grad_accumulation"] = "how the loss of the model's own train_step depends on the batch is unknown"
        elif session.facts["loss_reduction"] != "mean":
            left_out["grad_accumulation"] = f"the loss is no mean over the batch ({session.facts['loss_reduction']})"
        if session.as_written["grad_accumulation"] > 1:
            left_out["grad_accumulation"] = "the script accumulates gradients itself"
        if fits.backend == "torch":
            left_out["steps_per_execution"] = "Keras has it on TensorFlow and JAX only"
        if fits.backend != "tensorflow":
            for knob in ("threads", "inter_op_threads"):
                left_out[knob] = f"Keras computes with {fits.backend} here"

    def _note_retracing(self, fits: FitWatch) -> None:
        traces = fits.traces()
        if fits.calls >= 20 and traces > max(4, fits.calls // 4):
            self.session.note(
                f"the training step was traced anew {traces} times in {fits.calls} calls: batches of ever new shapes,"
                " or Python values where tensors were meant"
            )

    # evidence

    def _observe_knobs(self) -> None:
        session, fits = self.session, self.fits
        if "threads" in session.config:
            self._compare("threads", self._threads())
        if "inter_op_threads" in session.config:
            self._compare("inter_op_threads", self._inter_op_threads())
        if fits is None or fits.model is None:
            return
        for knob in ("run_eagerly", "steps_per_execution"):
            if knob in session.config:
                self._compare(knob, getattr(fits.model, knob))
        if "workers" in session.config:
            self._compare("workers", fits.workers)
        if "batch_size" in session.config:
            self._compare("batch_size", fits.largest_batch)
        if "grad_accumulation" in session.config:
            self._compare("grad_accumulation", accumulation_of(fits.model.optimizer))
        if "lr_scale" in session.config:
            self._rate_evidence(fits)
        if "precision" in session.config:
            self._precision_evidence(fits)
        if "jit_compile" in session.config:
            self._xla_evidence(fits)

    def _compare(self, knob: str, observed: Any, *, why: str = "") -> None:
        same = observed == self.session.config[knob]
        reason = "" if same else why or f"observed {observed}"
        self.session.knob(knob, "verified" if same else "contradicted", observed=observed, reason=reason)

    def _rate_evidence(self, fits: FitWatch) -> None:
        if fits.sets_rate:
            self.session.knob("lr_scale", "contradicted", reason="a LearningRateScheduler sets the rate")
        elif self.optimizers is None or not self.optimizers.scaled:
            self.session.knob("lr_scale", "not applicable", sites=0, changed=0, reason="no optimizer has a rate")
        else:
            self.session.knob("lr_scale", "verified", observed=self.session.config["lr_scale"])

    def _precision_evidence(self, fits: FitWatch) -> None:
        wanted = COMPUTES.get(str(self.session.config["precision"]), "")
        found = compute_dtypes(fits.model)
        if self.policy.chosen_by_script:
            reason = f"the script chooses the policy {self.policy.chosen_by_script} itself"
            self.session.knob("precision", "not applicable", changed=0, reason=reason)
        elif not found:
            self.session.knob("precision", "unverifiable", reason="no layer of Keras has weights")
        else:
            most = max(found, key=lambda dtype: found[dtype])
            told = ", ".join(f"{count} in {dtype}" for dtype, count in found.items())
            evidence = "verified" if most == wanted else "contradicted"
            self.session.knob(
                "precision", evidence, sites=sum(found.values()), changed=found.get(wanted, 0), observed=most,
                reason="" if most == wanted else f"layers compute {told}",
            )  # fmt: skip

    def _xla_evidence(self, fits: FitWatch) -> None:
        wanted, took = bool(self.session.config["jit_compile"]), bool(fits.model.jit_compile)
        if took != wanted:
            self._compare("jit_compile", took, why="a layer of the model doesn't support XLA")
        elif fits.backend == "tensorflow" and wanted and not self.cuda:
            ran = has_xla_threads()
            reason = "" if ran else "nothing was compiled by XLA"
            self.session.knob("jit_compile", "verified" if ran else "contradicted", observed=ran, reason=reason)
        else:
            self._compare("jit_compile", took)


def _loss_tracker(model: Any) -> Any:
    """The metric that holds the training loss, as Keras or the model's own train_step keeps it."""
    found = [m for m in model.metrics if m.name == "loss" and hasattr(m, "total") and hasattr(m, "count")]
    # A model with its own train_step leaves the one that Keras made unused.
    return next((metric for metric in reversed(found) if float(metric.count)), None)


def has_xla_threads() -> bool:
    """Whether XLA's thread pool exists: on a CPU it is made when the first compiled program is."""
    names = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm", encoding="ascii", errors="replace") as file:
                names.add(file.read().strip())
        except OSError:
            continue
    return any(name.startswith("tf_XLAEigen") for name in names)


def _adapter(session: Session) -> KerasAdapter:
    if session.keras is None:
        session.keras = KerasAdapter(session)
    adapter: KerasAdapter = session.keras
    return adapter


def tensorflow(session: Session, module: ModuleType) -> None:
    """Called right after ``import tensorflow``."""
    _adapter(session).meet_tensorflow(module)


def keras(session: Session, module: ModuleType) -> None:
    """Called right after ``import keras``."""
    _adapter(session).meet_keras(module)


ADAPTERS: dict[str, Callable[[Session, ModuleType], None]] = {
    "tensorflow": tensorflow,
    "keras": keras,
    **tf_files.ADAPTERS,
}
