"""Failures that a trial's surroundings explain, by the texts of the libraries that raise them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import worlds

from tuner.devices.cpu import cpu_device
from tuner.model import Outcome, OutcomeKind
from tuner.study.surroundings import surroundings_error

CARD = worlds.device("GPU-0")


def failed(text: str) -> Outcome:
    detail = text.splitlines()[-1]
    return Outcome(OutcomeKind.USER_ERROR, "script-raised", detail, f"Traceback (most recent call last):\n{text}\n")


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'RANK'",
        "KeyError: 'LOCAL_RANK'",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected,"
        " but not set",
    ],
)
def test_a_script_for_a_launcher(text: str) -> None:
    error = surroundings_error(failed(text), cpu_device())
    assert error is not None and "launcher" in error.message and "RANK=0" in error.hint
    assert "by itself" not in error.message


@pytest.mark.parametrize(
    "text",
    [
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        "AssertionError: Invalid device id",
        "RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1. Please use"
        " torch.load with map_location to map your storages to an existing device.",
        "RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED: Device index must be between 0 and"
        " num_devices, device=3, num_gpus=1",
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Could not satisfy device specification"
        " '/job:localhost/replica:0/task:0/device:GPU:3'",
    ],
)
def test_a_script_that_chooses_its_card(text: str) -> None:
    error = surroundings_error(failed(text), CARD)
    assert error is not None and "another card" in error.message and "--device cuda:3" in error.hint


def test_a_script_that_wants_a_card_in_a_study_without_one() -> None:
    error = surroundings_error(failed("AssertionError: Torch not compiled with CUDA enabled"), cpu_device())
    assert error is not None and "shows it none" in error.message and "--device cuda" in error.hint


def test_a_script_that_asks_for_an_answer() -> None:
    error = surroundings_error(failed("EOFError: EOF when reading a line"), cpu_device())
    assert error is not None and "standard input" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "    _, width = os.popen('stty size', 'r').read().split()\nValueError: not enough values to unpack",
        "    width = os.get_terminal_size().columns\nOSError: [Errno 25] Inappropriate ioctl for device",
        "    old = termios.tcgetattr(sys.stdin)\ntermios.error: (25, 'Inappropriate ioctl for device')",
    ],
)
def test_a_script_that_asks_for_a_terminal(text: str) -> None:
    error = surroundings_error(failed(text), cpu_device())
    assert error is not None and "asks for a terminal" in error.message and "/dev/null" in error.hint
    assert "by itself" not in error.message


def test_a_tracker_that_is_off() -> None:
    text = '  File "/env/site-packages/wandb/sdk/wandb_run.py", line 9, in url\n    x\nAttributeError: no url'
    error = surroundings_error(failed(text), cpu_device())
    assert error is not None and "fails in wandb" in error.message


@pytest.mark.parametrize(
    "raised",
    ["ModuleNotFoundError: No module named 'opentelemetry'", "ImportError: cannot import name 'x' from 'wandb.apis'"],
)
def test_a_tracker_that_cannot_be_imported_is_not_in_the_way_for_being_off(raised: str) -> None:
    """One that is on lacks the same."""
    text = f'  File "/env/site-packages/wandb/__init__.py", line 22, in <module>\n    import x\n{raised}'
    assert surroundings_error(failed(text), cpu_device()) is None


@pytest.mark.parametrize("text", ["KeyError: 'image'", "ValueError: invalid device", "FileNotFoundError: data.csv"])
def test_anything_else(text: str) -> None:
    assert surroundings_error(failed(text), cpu_device()) is None
    assert surroundings_error(failed(text), CARD) is None


def ended(line: str) -> Outcome:
    """By itself, with a status and no traceback."""
    return Outcome(OutcomeKind.USER_ERROR, "script-failed", f"the script ended with status 1: {line}")


@pytest.mark.parametrize(
    "line",
    [
        "Only TPU supported for AMP.",  # torch_xla's own test_train_mp_mnist_amp.py, 2.9
        "Only TPU or GPU supported for AMP.", "only GPUs are supported", "This script requires a CUDA-capable GPU",
        "Training needs at least one GPU.", "error: GPU is required", "flash attention can't run on the CPU",
        "CPU training is not supported",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["cpu", "xla"])
def test_a_script_that_ends_since_the_device_is_another_one(line: str, kind: str) -> None:
    """Nobody's fault: nothing is run again to find out whose."""
    error = surroundings_error(ended(line), replace(cpu_device(), kind=kind, label=kind))
    assert error is not None and error.message.startswith(f"the script can't run on {kind}") and line in error.message
    assert "\n" not in error.message and "by itself" not in error.message
    assert surroundings_error(ended(line), CARD) is None


@pytest.mark.parametrize(
    "line", ["No GPU found, using CPU", "GPU memory: 3 GiB", "the only GPU is busy", "batch 3 is not supported"]
)
def test_a_word_of_a_device_is_no_reason_by_itself(line: str) -> None:
    assert surroundings_error(ended(line), cpu_device()) is None
