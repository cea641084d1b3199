"""Decides what a trial ended as: from its records, its exit status and its log, in this order. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.analysis.measurement import all_of, knob_reports, last_of
from tuner.child.records import (
    Block,
    Exit,
    Failure,
    FirstStep,
    FrameworkSeen,
    Hello,
    LongCall,
    ProcessesAwaited,
    Record,
    ScriptException,
    Unstepped,
    WindowEnd,
)
from tuner.model import Evidence, OutcomeKind
from tuner.runner.log_text import last_line, one_line, raised_line, traceback_in, without_frames

Judgement = tuple[OutcomeKind, str, str]
"""Kind, reason (a slug), detail (one line for people)."""


class EndedBy(StrEnum):
    """Why the runner ended a trial.

    ``CROWDED_OUT``: it stood still, and others had the cores that it wanted meanwhile. ``HOST_OOM``: it took more than
    its limit. ``MACHINE_FULL``: hardly any memory was left, whoever had taken it. ``STAYED``: its script was through,
    and its process didn't end. ``OUT_OF_TIME``: the study's time was up.
    """

    DEADLINE = "deadline"
    NO_PROGRESS = "no-progress"
    CROWDED_OUT = "crowded-out"
    HOST_OOM = "host-oom"
    MACHINE_FULL = "machine-full"
    GUARD_LOST = "guard-lost"
    STAYED = "stayed"
    OUT_OF_TIME = "out-of-time"


_TOO_LONG = (EndedBy.DEADLINE, EndedBy.NO_PROGRESS, EndedBy.CROWDED_OUT)
_INFEASIBLE = OutcomeKind.INFEASIBLE
HOST_OOM, DEVICE_OOM, MACHINE_FULL = "host-oom", "device-oom", "machine-full"
"""Reasons of an outcome: the machine's memory was too small for it, or the device's, or others took what it lacked."""
OUT_OF_MEMORY = frozenset({HOST_OOM, DEVICE_OOM})
WORKER_KILLED = "worker-killed"
KILLED = frozenset({"signal-kill", WORKER_KILLED})
"""Reasons of an outcome: a SIGKILL that neither the kernel, for memory, nor the runner sent. No script sends itself
one: run again, what it was running may well come through. (A killed guard is a fault of the machine, and run again so.)
"""
WITHHELD_REASON = "withheld"
"""Of a run under plain Python that was kept from writing over a file of the user's."""
NO_FRAMEWORK = "no-framework"
"""Reason of an outcome: its time was up, and nothing that autotune knows was imported by then."""
NO_STEP_IN_TIME = "no-step-in-time"
"""Reason of an outcome: the script as written was ended by its time limit, and no step was seen by then."""
PROCESSES_AWAITED = "processes-awaited"
"""Reason of an outcome: it took too long, at last in waiting for a process that it started, and no step was seen."""
ENDED_EARLY = "ended-early"
"""Reason of an outcome: the script ended by itself, as without an error, and no step was seen by then."""
_NONE_OF = "none of PyTorch, TensorFlow, Keras and JAX"
TOO_SHORT = "too-short"
"""Reason of an outcome: too few steps for any figure."""
MIN_BLOCKS = 3


@dataclass(frozen=True)
class Traces:
    """All that is known of a trial that has ended.

    ``records`` are those sent before the runner ended it. ``baseline``: it ran the script as written, whose faults
    are the user's. ``status`` is ``waitpid``'s, None when the child hadn't ended when it was killed. ``ended_by`` is
    None where the runner didn't end it, ``ended_detail`` a line about it. ``log`` is the end of what the script
    printed. ``oom_killed``: the kernel killed something for memory meanwhile, anywhere on the machine. ``others_took``:
    a line about other processes that filled the machine's memory meanwhile, "" where they didn't. ``measurable``: the
    records give a measurement; None where that isn't known.
    """

    records: Sequence[Record]
    baseline: bool
    status: int | None = None
    ended_by: EndedBy | None = None
    ended_detail: str = ""
    log: str = ""
    oom_killed: bool = False
    others_took: str = ""
    measurable: bool | None = None

    @property
    def window(self) -> WindowEnd | None:
        """How the window ended, where it did."""
        return last_of(self.records, WindowEnd)

    @property
    def complete(self) -> bool:
        """Whether the window is."""
        return self.window is not None and self.window.complete


def classify(traces: Traces) -> Judgement:
    """The outcome's kind, its reason as a slug, and a line for people."""
    judgement = _from_failures(traces)
    if judgement:
        return _blamed(judgement, traces)
    if traces.complete and traces.measurable is not False:
        return OutcomeKind.COMPLETE, "", ""
    found = _from_exception(traces) or _from_our_kill(traces) or _from_signal(traces) or _from_end(traces)
    return _blamed(found, traces)


def _blamed(judgement: Judgement, traces: Traces) -> Judgement:
    """The judgement; no fault of the config where others took the memory that it lacked, within its own limit."""
    _, reason, _ = judgement
    if reason != HOST_OOM or not traces.others_took or traces.ended_by is EndedBy.HOST_OOM:
        return judgement
    return OutcomeKind.INFRASTRUCTURE, MACHINE_FULL, traces.others_took


def _from_failures(traces: Traces) -> Judgement | None:
    """Faults of the config that the child recognised. Out of memory doesn't count when a complete window followed."""
    for failure in all_of(traces.records, Failure):
        if not (traces.complete and failure.reason in OUT_OF_MEMORY):
            return _INFEASIBLE, failure.reason, one_line(failure.detail)
    for report in knob_reports(traces.records):
        if report.evidence is Evidence.CONTRADICTED:
            why = report.reason or f"observed {report.observed}"
            return _INFEASIBLE, "contradicted", one_line(f"{report.knob}={report.requested} did not take effect: {why}")
    return None


def _from_our_kill(traces: Traces) -> Judgement | None:
    kinds = {
        EndedBy.DEADLINE: OutcomeKind.TIMED_OUT,
        EndedBy.NO_PROGRESS: OutcomeKind.NO_PROGRESS,
        EndedBy.CROWDED_OUT: OutcomeKind.NO_PROGRESS,
        EndedBy.HOST_OOM: _INFEASIBLE,
        EndedBy.MACHINE_FULL: _INFEASIBLE,
        EndedBy.GUARD_LOST: OutcomeKind.INFRASTRUCTURE,
        EndedBy.OUT_OF_TIME: OutcomeKind.UNFINISHED,
    }
    why = traces.window.why if traces.window is not None else ""
    if traces.ended_by is EndedBy.DEADLINE and why and traces.measurable:
        # All that there is to know is written down: only the script's own end is missing.
        return OutcomeKind.COMPLETE, "", one_line(why)
    if traces.ended_by not in kinds:
        return None
    stepless = _stepless(traces)
    if stepless is not None:
        return kinds[traces.ended_by], *stepless
    reason = HOST_OOM if traces.ended_by is EndedBy.MACHINE_FULL else traces.ended_by.value
    return kinds[traces.ended_by], reason, traces.ended_detail


def _stepless(traces: Traces) -> tuple[str, str] | None:
    """Reason and detail where a trial took too long without a step, and more time may not help it; None elsewhere."""
    records, lasted = traces.records, traces.ended_detail.partition(":")[0]
    if traces.ended_by not in _TOO_LONG or last_of(records, FirstStep) is not None:
        return None
    unstepped, call = last_of(records, Unstepped), last_of(records, LongCall)
    if unstepped is not None:
        seen = f"{unstepped.batches:,} batches or more were fetched"
        if unstepped.gradients:
            seen = f"{unstepped.gradients:,} gradients or more were taken by torch.autograd.grad or torch.func"
        return "no-step", f"{lasted}: {seen}, and no training step was seen"
    if call is not None:
        return "long-call", f"{lasted}: still in one call of {call.function} that takes {call.steps:,} steps at once"
    awaited = last_of(records, ProcessesAwaited)
    if awaited is not None and awaited.function and traces.ended_by is not EndedBy.CROWDED_OUT:
        waits = f"the script waits for a process that it started ({awaited.function})"
        return PROCESSES_AWAITED, f"{lasted}: {waits}, and no training step was seen in its own"
    if traces.ended_by is not EndedBy.DEADLINE or last_of(records, Hello) is None:
        return None
    if last_of(records, FrameworkSeen) is None:
        return NO_FRAMEWORK, f"{traces.ended_detail}; until then its process used {_NONE_OF}"
    return (NO_STEP_IN_TIME, traces.ended_detail) if traces.baseline else None


def _from_exception(traces: Traces) -> Judgement | None:
    """An exception that left the user's script."""
    raised = last_of(traces.records, ScriptException)
    if raised is None or raised.origin != "script":
        return None
    line = one_line(f"{raised.type}: {_essence(raised.text)}" if raised.text else raised.type)
    matched = _reason_in(f"{raised.type}: {raised.text}\n{raised.traceback}", traces)
    if matched == WORKER_KILLED:
        return OutcomeKind.CRASHED, matched, line
    if matched in OUT_OF_MEMORY:
        return _INFEASIBLE, matched, line
    if matched == "disk-full":
        return OutcomeKind.INFRASTRUCTURE, matched, line
    if traces.baseline:
        return OutcomeKind.USER_ERROR, "script-raised", line
    return _INFEASIBLE, matched or "script-raised", line


def _from_signal(traces: Traces) -> Judgement | None:
    number = -_exit_code(traces)
    if number <= 0:
        return None
    name = _signal_name(number)
    if number == signal.SIGKILL and traces.oom_killed:
        return _INFEASIBLE, "host-oom", "the kernel killed it: the machine ran out of memory"
    matched = _reason_in(traces.log, traces)
    told = number != signal.SIGKILL or matched in OUT_OF_MEMORY  # what is killed can't say so
    last = last_line(traces.log) if told else ""
    detail = one_line(f"died of {name}: {last}" if last else f"died of {name}")
    if matched in OUT_OF_MEMORY or (matched and number == signal.SIGABRT):
        return (OutcomeKind.INFRASTRUCTURE if matched == "disk-full" else _INFEASIBLE), matched, detail
    if number == signal.SIGBUS and re.search(r"shm|shared memory", traces.log):
        return _INFEASIBLE, "host-oom", detail
    return OutcomeKind.CRASHED, f"signal-{name.removeprefix('SIG').lower()}", detail


def _from_end(traces: Traces) -> Judgement:
    """The script ended by itself, without an exception, before its window was complete."""
    code = _exit_code(traces)
    ours = OutcomeKind.USER_ERROR if traces.baseline else _INFEASIBLE
    if last_of(traces.records, Hello) is None:
        detail = last_line(traces.log) or f"the process ended with status {code} before it said anything"
        return OutcomeKind.INFRASTRUCTURE, "no-start", one_line(detail)
    matched = _reason_in(traces.log, traces) if code else ""
    if matched == WORKER_KILLED:
        return OutcomeKind.CRASHED, matched, one_line(last_line(traces.log))
    if matched in OUT_OF_MEMORY:
        return _INFEASIBLE, matched, one_line(last_line(traces.log))
    if code:
        last = last_line(traces.log)
        detail = f"the script ended with status {code}{f': {last}' if last else ', and printed nothing'}"
        return ours, "script-failed", one_line(detail)
    if last_of(traces.records, FirstStep) is None:
        last = last_line(traces.log)
        detail = "the script ended by itself, with status 0, before any training step was seen"
        if last_of(traces.records, FrameworkSeen) is None:
            detail = f"the script ended by itself, with status 0, and its process used {_NONE_OF}"
        return ours, ENDED_EARLY, one_line(f"{detail}; it printed last: {last}" if last else detail)
    blocks = sum(1 for block in all_of(traces.records, Block) if not block.flagged)
    if traces.measurable if traces.measurable is not None else blocks >= MIN_BLOCKS:
        why = traces.window.why if traces.window is not None else ""
        return OutcomeKind.COMPLETE, "", one_line(why or "the script ended before the window was complete")
    if traces.complete:  # by the samples of a screen
        return ours, TOO_SHORT, f"it was over after {blocks} steps, which are too few to compare"
    return ours, TOO_SHORT, "the script ended after its first steps, before anything could be measured"


def classify_plain(traces: Traces, withheld: str = "") -> Judgement:
    """Of a run under plain Python, which sends no records: whether the script fails in it, and as what.

    ``COMPLETE`` means that it ended without an error. ``withheld`` is the path of the user's that it was kept from
    touching, "" for none: it was ended there, and how it would have gone on isn't known.
    """
    if withheld:
        return OutcomeKind.INFRASTRUCTURE, WITHHELD_REASON, one_line(f"it would write over {withheld}")
    ended = _from_our_kill(traces) or _from_signal(traces)
    if ended:
        return _blamed(ended, traces)
    if not _exit_code(traces):
        return OutcomeKind.COMPLETE, "", ""
    raised = raised_line(traceback_in(traces.log))
    line = one_line(raised or last_line(traces.log))
    matched = _reason_in(traceback_in(traces.log) or last_line(traces.log), traces)
    if matched == WORKER_KILLED:
        return OutcomeKind.CRASHED, matched, line
    if matched in OUT_OF_MEMORY:
        return _blamed((_INFEASIBLE, matched, line), traces)
    return OutcomeKind.USER_ERROR, "script-raised" if raised else "script-failed", line


def _exit_code(traces: Traces) -> int:
    """The script's exit code, negative for a signal; what it said itself where we ended the process."""
    status = traces.status
    if traces.ended_by or status is None:
        ended = last_of(traces.records, Exit)
        return 0 if ended is None else ended.code
    return -(status & 0x7F) if status & 0x7F else status >> 8


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Each list is from the libraries' own texts. Device before host: "CUDA out of memory" names both.
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "device-oom",
        re.compile(
            r"\bOutOfMemoryError\b|(?:CUDA|HIP|MPS backend|XPU|GPU) out of memory"
            r"|(?:CUDA|HIP) (?:driver )?error: out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
            r"|CUDA_ERROR_OUT_OF_MEMORY|C[UR]BLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
            # What cuBLAS says when there is no memory left for its handle.
            r"|CUBLAS_STATUS_NOT_INITIALIZED"
            r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"
            r"|CUFFT_ALLOC_FAILED|hipblas\w*_STATUS_ALLOC_FAILED|ROCBLAS_STATUS_MEMORY_ERROR"
            r"|[Uu]nable to find (?:a valid|an) (?:cuDNN algorithm|engine)"
            r"|nccl[\s\S]{0,400}out of memory|Cuda failure(?: \d+)? '?out of memory"
            r"|RESOURCE_EXHAUSTED|ResourceExhaustedError|Resource exhausted: |OOM when allocating"
            r"|Ran out of memory in memory space (?:hbm|vmem)"
            # What is left of XLA's own texts in torch_xla 2.9, which drops the status.
            r"|Out of memory allocating \d+ bytes"
            r"|Attempting to (?:allocate|reserve) [\d.]+[KMGT]?\. That was not possible",
            re.IGNORECASE,
        ),
    ),
    (
        "host-oom",
        re.compile(
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|\bMemoryError\b|std::bad_alloc"
            r"|Cannot allocate memory|[Uu]nable to allocate [\d.]+ [KMGTPE]?iB for an array"
            r"|DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Bus error"
            r"|(?:unable to (?:write to|allocate|mmap|resize|open)[^\n]{0,80}(?:shm|shared memory|/torch_)"
            r"|insufficient shared memory)"
        ),
    ),
    (WORKER_KILLED, re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed")),
    ("disk-full", re.compile(r"No space left on device|Disk quota exceeded")),
    (
        "compile-failure",
        re.compile(
            r"BackendCompilerFailed|InductorError|CppCompileError|LoweringException|CUDACompileError"
            r"|torch\._dynamo\.exc\.|torch\._inductor\.exc\.|triton\.compiler\.errors|triton\.runtime\.errors"
            r"|ptxas (?:fatal|error|returned)|PTXASError|`?ptxas`? (?:failed|died)|XLA compilation failed"
            r"|Failed to find C compiler|InvalidCxxCompiler|TritonMissing"
            r"|Detected unsupported operations when trying to compile graph|tf2xla conversion failed"
            # JAX's own, and XLA's as JAX and torch_xla pass them on.
            r"|MLIR translation rule for primitive '[^']*' not found|No such compile option"
            r"|XLA:\w+ compile permanent error|RET_CHECK failure \(\S*xla/(?:service|backends)/"
            r"|rewriting computation to not contain X64 element types"
        ),
    ),
    ("overwritten", re.compile(r"accessing (?:gradient )?tensor output of CUDAGraphs that has been overwritten")),
    (
        "nan",
        re.compile(
            r"(?:loss|gradients?|values?|input|tensor)\b[^\n]{0,60}\b(?:is|are|was|contains?|has|to be) "
            r"(?:a )?(?:nan|inf|non-?finite|not finite)\b|contains? (?:nan|inf)\b"
            r"|returned nan values|Input contains NaN|found NaN",
            re.IGNORECASE,
        ),
    ),
)


def match_text(text: str) -> str:
    """The reason that a text of the libraries names, or ""."""
    for reason, pattern in _PATTERNS:
        if pattern.search(text):
            return reason
    return ""


def _reason_in(text: str, traces: Traces) -> str:
    """As ``match_text``, without the source that tracebacks quote; the kernel kills workers where memory runs out, and
    says so of its own accord.
    """
    reason = match_text(without_frames(text))
    return HOST_OOM if reason == WORKER_KILLED and traces.oom_killed else reason


_UNSUPPORTED = re.compile(r"unsupported operations when trying to compile graph \S+ on \S+ (\w+) \(([^{)\n]*)")
_OVERWRITTEN = ("Error: accessing tensor output of CUDAGraphs", "Error: accessing gradient tensor output of CUDAGraphs")
_EAGER = re.compile(r"\{\{function_node [^}]*\}\} ")
_TRACEBACK = "\nTraceback (most recent call last):"
"""Behind what Python code raised that TensorFlow called, such as the script's generator."""
_SURROUNDINGS = ("Graph execution error", "Detected at node", "<stack traces", "The op is created at", "File ", "[[")


def _essence(text: str) -> str:
    """A framework's own sentence, without its account of where a graph's node or a line of traced code came from."""
    if text.startswith(_OVERWRITTEN):
        return text.removeprefix("Error: ").partition(". Stack trace:")[0]
    if text.startswith("in user code:"):
        sentence = last_line(text)
        return sentence.partition(": ")[2] or sentence  # behind the error's name
    raised, is_raised, _ = _EAGER.sub("", text, count=1).partition(_TRACEBACK)
    if not text.startswith("Graph execution error"):
        return raised.strip().removesuffix(":") if is_raised and _EAGER.match(text) else text
    unsupported = _UNSUPPORTED.search(text)
    if unsupported:
        return f"XLA can't compile {unsupported[1]}: {unsupported[2].removesuffix(' compatible with node ')}"
    lines = [line.strip() for line in raised.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(_SURROUNDINGS)]
    return " ".join(own).removesuffix(":") if is_raised and own else (own or [text])[-1]
