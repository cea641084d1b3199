"""Every end that a trial can come to, told apart by what it leaves."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from tuner.child.records import (
    Block,
    Evidence,
    Exit,
    Failure,
    FirstStep,
    FrameworkSeen,
    Hello,
    KnobReport,
    LongCall,
    Phase,
    Record,
    ScriptException,
    Unstepped,
    WindowEnd,
)
from tuner.model import OutcomeKind
from tuner.runner.classify import EndedBy, Traces, classify, match_text

HELLO = Hello(1, "3.11.0", "/usr/bin/python")
STEP = FirstStep(1.0)
DONE = WindowEnd(True)
CUT = WindowEnd(False)


def exited(code: int) -> int:
    return code << 8


def block(*, flagged: bool = False) -> Block:
    return Block(Phase.WINDOW, 1, 1.0, 1.0, 0.0, flagged)


def raised(name: str, text: str, traceback: str = "", origin: str = "script") -> ScriptException:
    return ScriptException(name, text, traceback, origin)


def failed(reason: str, detail: str = "") -> Failure:
    return Failure(reason, detail)


def judge(*records: Record, baseline: bool = False, **traces: Any) -> tuple[OutcomeKind, str]:
    kind, reason, detail = classify(Traces([HELLO, *records], baseline, **{"status": 0, **traces}))
    assert "\n" not in detail
    return kind, reason


DEVICE_OOM = [
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity)",
    "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "torch.AcceleratorError: CUDA error: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
    "RuntimeError: GET was unable to find an engine to execute this computation",
    "RuntimeError: FIND was unable to find an engine to execute this computation",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\nLast error:\nCuda failure 'out of memory'",
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.9 GB, other allocations: 1 GB, max allowed: 18 GB)",
    "RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB",
    "RuntimeError: HIP error: out of memory",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1073741824 bytes.",
    "RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: Attempting to allocate 4.00G.",
    "RuntimeError: Out of memory allocating 70368744177664 bytes.",
    "RuntimeError: Error allocating device buffer: Attempting to allocate 3.95G. That was not possible.",
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.",
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node __wrapped__Conv2D}} "
    "OOM when allocating tensor with shape[512,64,112,112]",
]

HOST_OOM = [
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 1099511627776 bytes. Error code 12 (Cannot allocate memory)",
    "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 4096 bytes.",
    "RuntimeError: DataLoader worker (pid 12345) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory.",
    "MemoryError",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000,)",
    "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    "OSError: [Errno 12] Cannot allocate memory",
    "RuntimeError: unable to write to file </torch_123_456_0>: No space left on device (28)",
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: Resource temporarily unavailable (11)",
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
]

COMPILE = [
    "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nAssertionError",
    "torch._inductor.exc.InductorError: LoweringException: NotImplementedError",
    "torch._inductor.exc.CppCompileError: C++ compile error\n\nCommand:\ng++ /tmp/x.cpp",
    "torch._dynamo.exc.Unsupported: Graph break under fullgraph",
    "triton.compiler.errors.CompilationError: at 1:0:",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
    "RuntimeError: `ptxas` failed with error code 255",
    "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'",
    "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
    "NotImplementedError: MLIR translation rule for primitive 'odd' not found for platform cpu",
    "jax.errors.JaxRuntimeError: INVALID_ARGUMENT: No such compile option: 'xla_foo'",
    "RuntimeError: Bad StatusOr access: INTERNAL: XLA:TPU compile permanent error. Core halted.",
    "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: RET_CHECK failure (xla/service/layout_normalization.cc:120) ",
    "RuntimeError: UNIMPLEMENTED: While rewriting computation to not contain X64 element types, XLA encountered an HLO",
]

NAN = [
    "ValueError: loss is NaN",
    "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    "ValueError: Input contains NaN.",
    "FloatingPointError: The loss was not finite",
    "RuntimeError: The total norm for gradients from `parameters` is non-finite, so it cannot be clipped.",
]

INNOCENT = [
    "KeyError: 'memory'",
    "ValueError: expected a banana",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x784 and 28x10)",
    "FileNotFoundError: [Errno 2] No such file or directory: 'nan.csv'",
    "I said nothing about being out of memory management",
    "ImportError: No module named 'triton'",
    "AssertionError: CUDA memory should be free",
    "info: the batch is infinite",
]


@pytest.mark.parametrize("text", DEVICE_OOM)
def test_device_out_of_memory_texts(text: str) -> None:
    assert match_text(text) == "device-oom"


@pytest.mark.parametrize("text", HOST_OOM)
def test_host_out_of_memory_texts(text: str) -> None:
    assert match_text(text) == "host-oom"


@pytest.mark.parametrize("text", COMPILE)
def test_compile_failure_texts(text: str) -> None:
    assert match_text(text) == "compile-failure"


@pytest.mark.parametrize("text", NAN)
def test_nan_texts(text: str) -> None:
    assert match_text(text) == "nan"


@pytest.mark.parametrize("text", INNOCENT)
def test_other_texts_match_nothing(text: str) -> None:
    assert match_text(text) == ""


@pytest.mark.parametrize("baseline", [True, False])
@pytest.mark.parametrize(
    ("text", "reason"), [*[(t, "device-oom") for t in DEVICE_OOM], *[(t, "host-oom") for t in HOST_OOM]]
)
def test_an_exception_for_memory_makes_the_config_infeasible(text: str, reason: str, baseline: bool) -> None:
    name, _, rest = text.partition(": ")
    record = raised(name, rest)
    assert judge(STEP, record, baseline=baseline, status=exited(1)) == (OutcomeKind.INFEASIBLE, reason)


def test_the_users_bug_is_theirs_without_a_config_and_the_configs_with_one() -> None:
    bug = raised("ValueError", "batch too large\nfor this", "Traceback …")
    assert judge(bug, baseline=True, status=exited(1)) == (OutcomeKind.USER_ERROR, "script-raised")
    kind, reason, detail = classify(Traces([HELLO, bug], baseline=False, status=exited(1)))
    assert (kind, reason) == (OutcomeKind.INFEASIBLE, "script-raised")
    assert detail == "ValueError: batch too large for this"


def test_a_compile_failure_is_the_configs_or_the_scripts_own() -> None:
    record = raised("BackendCompilerFailed", "backend='inductor' raised")
    assert judge(record, status=exited(1)) == (OutcomeKind.INFEASIBLE, "compile-failure")
    assert judge(record, baseline=True, status=exited(1))[0] is OutcomeKind.USER_ERROR


def test_xla_failures_are_told_in_tensorflows_own_sentence() -> None:
    text = """Graph execution error:

Detected at node sequential_1/l_1/AsString defined at (most recent call last):
<stack traces unavailable>
Detected unsupported operations when trying to compile graph __inference_step_215[] on XLA_CPU_JIT: AsString (No \
registered 'AsString' OpKernel for XLA_CPU_JIT devices compatible with node {{node l_1/AsString}}){{node l_1/AsString}}
The op is created at:
File "train.py", line 10, in <module>
\ttf2xla conversion failed while converting __inference_step_215[].
\t [[StatefulPartitionedCall]] [Op:__inference_multi_step_on_iterator_231]"""
    judgement = classify(Traces([HELLO, raised("InvalidArgumentError", text)], False, status=exited(1)))
    assert judgement[:2] == (OutcomeKind.INFEASIBLE, "compile-failure")
    assert judgement[2] == (
        "InvalidArgumentError: XLA can't compile AsString: No registered 'AsString' OpKernel for XLA_CPU_JIT devices"
    )


def test_an_error_of_a_graph_is_told_without_the_story_of_its_nodes() -> None:
    text = """Graph execution error:

Detected at node dense/MatMul defined at (most recent call last):
  File "train.py", line 4, in <module>
Matrix size-incompatible: In[0]: [32,4], In[1]: [5,1]
\t [[{{node dense/MatMul}}]] [Op:__inference_step_77]"""
    judgement = classify(Traces([HELLO, raised("InvalidArgumentError", text)], False, status=exited(1)))
    assert judgement[2] == "InvalidArgumentError: Matrix size-incompatible: In[0]: [32,4], In[1]: [5,1]"


def test_an_error_in_traced_code_is_told_without_the_lines_that_led_there() -> None:
    text = """in user code:

    File "train.py", line 148, in None  *
        lambda one, two: mix_up(one, two)
    File "train.py", line 122, in mix_up  *
        size = keras.backend.shape(one)[0]

    AttributeError: module 'keras.backend' has no attribute 'shape'
"""
    judgement = classify(Traces([HELLO, raised("AttributeError", text)], True, status=exited(1)))
    assert judgement[2] == "AttributeError: module 'keras.backend' has no attribute 'shape'"


def test_a_full_disk_is_the_machines() -> None:
    record = raised("OSError", "[Errno 28] No space left on device: 'log'")
    assert judge(record, status=exited(1)) == (OutcomeKind.INFRASTRUCTURE, "disk-full")


@pytest.mark.parametrize("reason", ["nan", "device-oom", "host-oom", "compile-failure", "unsupported", "contradicted"])
def test_what_the_child_recognised_comes_first(reason: str) -> None:
    assert judge(STEP, failed(reason), status=exited(1)) == (OutcomeKind.INFEASIBLE, reason)
    assert judge(STEP, failed(reason), ended_by=EndedBy.DEADLINE) == (OutcomeKind.INFEASIBLE, reason)


def test_nan_in_a_full_window_is_no_success() -> None:
    assert judge(STEP, failed("nan"), DONE) == (OutcomeKind.INFEASIBLE, "nan")


def test_a_script_that_survived_out_of_memory_to_a_full_window_is_complete() -> None:
    assert judge(STEP, failed("device-oom"), DONE)[0] is OutcomeKind.COMPLETE


def test_a_contradicted_knob_makes_a_full_window_infeasible() -> None:
    knob = KnobReport("workers", 8, 1, 1, Evidence.CONTRADICTED, observed=0)
    assert judge(STEP, knob, DONE) == (OutcomeKind.INFEASIBLE, "contradicted")
    assert judge(STEP, replace(knob, evidence=Evidence.VERIFIED), DONE)[0] is OutcomeKind.COMPLETE


@pytest.mark.parametrize("status", [0, exited(1), exited(134), int(signal.SIGKILL), int(signal.SIGSEGV), None])
def test_a_full_window_is_complete_however_the_process_ended(status: int | None) -> None:
    assert judge(STEP, DONE, status=status) == (OutcomeKind.COMPLETE, "")
    assert judge(STEP, DONE, raised("StopTrial", "", origin="stop"), status=status)[0] is OutcomeKind.COMPLETE


@pytest.mark.parametrize(
    ("ended_by", "kind"),
    [
        (EndedBy.DEADLINE, OutcomeKind.TIMED_OUT),
        (EndedBy.NO_PROGRESS, OutcomeKind.NO_PROGRESS),
        (EndedBy.CROWDED_OUT, OutcomeKind.NO_PROGRESS),
        (EndedBy.HOST_OOM, OutcomeKind.INFEASIBLE),
        (EndedBy.GUARD_LOST, OutcomeKind.INFRASTRUCTURE),
    ],
)
def test_our_own_kill_is_told_by_its_reason(ended_by: EndedBy, kind: OutcomeKind) -> None:
    for baseline in (True, False):
        assert judge(STEP, baseline=baseline, status=None, ended_by=ended_by) == (kind, ended_by)


@pytest.mark.parametrize("baseline", [True, False])
def test_a_window_that_the_deadline_cut_short_is_a_figure_once_all_is_told(baseline: bool) -> None:
    cut = replace(CUT, why="its time was up")
    late: dict[str, Any] = {"baseline": baseline, "status": None, "ended_by": EndedBy.DEADLINE}
    assert judge(STEP, cut, measurable=True, **late) == (OutcomeKind.COMPLETE, "")
    assert judge(STEP, cut, baseline=baseline, measurable=True) == (OutcomeKind.COMPLETE, "")
    assert judge(STEP, cut, measurable=False, **late) == (OutcomeKind.TIMED_OUT, "deadline")
    assert judge(STEP, measurable=True, **late) == (OutcomeKind.TIMED_OUT, "deadline"), "no facts: nothing to go by"


def test_an_exception_before_our_kill_is_the_cause() -> None:
    assert judge(raised("ValueError", "x"), status=None, ended_by=EndedBy.STAYED, baseline=True) == (
        OutcomeKind.USER_ERROR,
        "script-raised",
    )


def test_a_script_that_was_through_but_stayed_is_judged_by_its_end() -> None:
    ending: list[Record] = [STEP, *[block()] * 5, CUT, Exit(0)]
    assert judge(*ending, status=None, ended_by=EndedBy.STAYED)[0] is OutcomeKind.COMPLETE
    assert judge(STEP, CUT, Exit(3), status=None, ended_by=EndedBy.STAYED)[1] == "script-failed"


def test_sigkill_by_the_kernel_is_out_of_memory_and_by_others_a_crash() -> None:
    assert judge(STEP, status=int(signal.SIGKILL), oom_killed=True) == (OutcomeKind.INFEASIBLE, "host-oom")
    assert judge(STEP, status=int(signal.SIGKILL)) == (OutcomeKind.CRASHED, "signal-kill")


KILLED_WORKERS = [
    "DataLoader worker (pid 12345) is killed by signal: Killed. ",
    "DataLoader worker (pid(s) 12, 13) is killed by signal: Killed. ",
]


@pytest.mark.parametrize("text", KILLED_WORKERS)
@pytest.mark.parametrize("baseline", [True, False])
def test_a_worker_killed_by_the_kernel_is_out_of_memory_and_by_others_a_crash(text: str, baseline: bool) -> None:
    ended: list[Record] = [STEP, raised("RuntimeError", text)]
    assert judge(*ended, baseline=baseline) == (OutcomeKind.CRASHED, "worker-killed")
    assert judge(*ended, baseline=baseline, oom_killed=True) == (OutcomeKind.INFEASIBLE, "host-oom")
    log = f"RuntimeError: {text}"
    assert judge(STEP, Exit(1), status=1 << 8, baseline=baseline, log=log) == (OutcomeKind.CRASHED, "worker-killed")


OTHERS = "the machine's memory ran out: other processes hold 60 GiB"


@pytest.mark.parametrize("baseline", [False, True])
def test_memory_that_others_took_is_no_fault_of_the_config(baseline: bool) -> None:
    full = (OutcomeKind.INFRASTRUCTURE, "machine-full")
    own = (OutcomeKind.INFEASIBLE, "host-oom")
    killed: dict[str, Any] = {"status": int(signal.SIGKILL), "oom_killed": True, "baseline": baseline}
    ended: dict[str, Any] = {"status": None, "ended_by": EndedBy.MACHINE_FULL, "baseline": baseline}
    error = raised("MemoryError", "")
    assert judge(STEP, **killed) == judge(STEP, **ended) == judge(error, baseline=baseline) == own
    assert judge(STEP, **killed, others_took=OTHERS) == judge(STEP, **ended, others_took=OTHERS) == full
    assert judge(error, baseline=baseline, others_took=OTHERS) == full
    assert judge(failed("host-oom"), baseline=baseline, others_took=OTHERS) == full
    over = {**ended, "ended_by": EndedBy.HOST_OOM}
    assert judge(STEP, **over, others_took=OTHERS) == own, "it took more than its own limit"
    assert judge(failed("device-oom"), baseline=baseline, others_took=OTHERS)[1] == "device-oom"
    assert judge(STEP, DONE, others_took=OTHERS)[0] is OutcomeKind.COMPLETE


def test_an_abort_is_explained_by_the_log() -> None:
    status = int(signal.SIGABRT)
    assert judge(STEP, status=status, log="what():  std::bad_alloc\n") == (OutcomeKind.INFEASIBLE, "host-oom")
    assert judge(STEP, status=status, log="free(): invalid pointer\n") == (OutcomeKind.CRASHED, "signal-abrt")
    shm = "insufficient shared memory (shm)"
    assert judge(STEP, status=int(signal.SIGBUS), log=shm) == (OutcomeKind.INFEASIBLE, "host-oom")


def test_a_core_dump_flag_does_not_hide_the_signal() -> None:
    assert judge(STEP, status=int(signal.SIGSEGV) | 0x80) == (OutcomeKind.CRASHED, "signal-segv")


@pytest.mark.parametrize(("code", "reason"), [(0, "ended-early"), (2, "script-failed")])
def test_no_step_is_the_scripts_without_a_config_and_the_configs_with_one(code: int, reason: str) -> None:
    assert judge(baseline=True, status=exited(code)) == (OutcomeKind.USER_ERROR, reason)
    assert judge(status=exited(code)) == (OutcomeKind.INFEASIBLE, reason)


def test_a_script_without_a_framework_is_told_so() -> None:
    """An optimizer's step() is no help to who trains with scikit-learn or XGBoost."""
    told = classify(Traces([HELLO], True, status=exited(0), log="[199] train-logloss:0.1\n"))
    named = "the script ended by itself, with status 0, and its process used none of PyTorch, TensorFlow, Keras and JAX"
    assert told[1:] == ("ended-early", f"{named}; it printed last: [199] train-logloss:0.1")
    seen: list[Record] = [HELLO, FrameworkSeen("torch", "2.9.0", "cpu")]
    assert "used none" not in classify(Traces(seen, True, status=exited(0)))[2]


@pytest.mark.parametrize("ended", [EndedBy.DEADLINE, EndedBy.NO_PROGRESS])
def test_a_loop_that_fetches_and_is_never_seen_to_train_is_told_so(ended: EndedBy) -> None:
    """More time wouldn't help it: its gradients are ``torch.func``'s, say."""
    detail = "not through after 45 s: no training step was seen by then"
    fetched: list[Record] = [HELLO, Unstepped(128), Unstepped(2048)]
    told = classify(Traces(fetched, True, ended_by=ended, ended_detail=detail))[1:]
    assert told == ("no-step", f"{detail[:22]}: 2,048 batches or more were fetched, and no training step was seen")
    stepped = classify(Traces([*fetched, STEP], True, ended_by=ended, ended_detail=detail))
    assert stepped[1:] == (ended.value, detail)
    taken = classify(Traces([Unstepped(0, 1024)], True, ended_by=ended, ended_detail=detail))
    assert "1,024 gradients or more were taken by torch.autograd.grad or torch.func, and no training" in taken[2]


def test_a_call_that_takes_many_steps_at_once_is_named() -> None:
    detail = "not through after 45 s: no training step was seen by then"
    told = classify(Traces([HELLO, LongCall("train", 468)], True, ended_by=EndedBy.DEADLINE, ended_detail=detail))
    assert told[1:] == ("long-call", "not through after 45 s: still in one call of train that takes 468 steps at once")


def test_a_child_that_never_spoke_is_our_fault() -> None:
    kind, reason, detail = classify(Traces([], baseline=True, status=exited(127), log="can't start python9\n"))
    assert (kind, reason, detail) == (OutcomeKind.INFRASTRUCTURE, "no-start", "can't start python9")


def test_a_short_script_is_complete_with_enough_blocks_and_too_short_without() -> None:
    assert judge(STEP, *[block()] * 3, CUT)[0] is OutcomeKind.COMPLETE
    assert judge(STEP, block(), CUT, baseline=True) == (OutcomeKind.USER_ERROR, "too-short")
    assert judge(STEP, *[block()] * 3, CUT, measurable=False)[1] == "too-short"
    screened = classify(Traces([HELLO, STEP, *[block()] * 2, DONE], False, status=0, measurable=False))
    assert screened[1:] == ("too-short", "it was over after 2 steps, which are too few to compare")


def test_a_failing_exit_after_steps_is_no_success() -> None:
    assert judge(STEP, *[block()] * 9, status=exited(3), baseline=True) == (OutcomeKind.USER_ERROR, "script-failed")
    assert judge(STEP, *[block()] * 9, status=exited(3)) == (OutcomeKind.INFEASIBLE, "script-failed")
