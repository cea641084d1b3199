"""What a kind of device asks of the frameworks, on stand-ins for their modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.child import devices
from tuner.child.devices import cpu
from tuner.child.records import Memory

GIB = 2**30


class _Cuda:
    """``torch.cuda`` of a card of 8 GiB; what it was asked for is kept in ``calls``."""

    def __init__(self, *, initialized: bool = True, capability: int = 8, capturing: bool = False) -> None:
        self.calls: list[Any] = []
        self.initialized = initialized
        self.capability = capability
        self.capturing = capturing
        self.peak = GIB

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def is_initialized(self) -> bool:
        return self.initialized

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def _lazy_call(self, function: Any) -> None:
        self.calls.append("later")
        function()

    def set_per_process_memory_fraction(self, fraction: float, number: int) -> None:
        self.calls.append((fraction, number))

    def get_device_properties(self, number: int) -> Any:
        return SimpleNamespace(total_memory=8 * GIB)

    def get_device_capability(self) -> tuple[int, int]:
        return self.capability, 0

    def is_bf16_supported(self) -> bool:
        return self.capability >= 8

    def mem_get_info(self) -> tuple[int, int]:
        return 2 * GIB, 8 * GIB

    def memory_stats(self) -> dict[str, int]:
        return {"num_ooms": 1}

    def memory_reserved(self) -> int:
        return 3 * GIB

    def max_memory_reserved(self) -> int:
        return 4 * GIB

    def max_memory_allocated(self) -> int:
        return self.peak


def _torch(**cuda: Any) -> Any:
    return SimpleNamespace(cuda=_Cuda(**cuda))


def test_a_label_names_its_kind_and_an_unknown_one_is_treated_as_a_cpu() -> None:
    labels = ("cuda:3", "cpu", "tpu:0", "abacus")
    assert [devices.named(label).kind for label in labels] == ["cuda", "cpu", "tpu", "cpu"]
    assert devices.named("cuda:3").label == "cuda:3"


@pytest.mark.parametrize("label", ["cpu", "tpu:0"])
def test_a_device_that_needs_nothing_touches_no_framework(label: str) -> None:
    device, nothing = devices.named(label), SimpleNamespace()
    device.torch_synchronize(nothing)  # type: ignore[arg-type]  # a stand-in for the module
    device.torch_cap_memory(nothing, GIB)  # type: ignore[arg-type]  # likewise
    device.tensorflow_synchronize(nothing)  # type: ignore[arg-type]  # likewise
    assert device.torch_memory(nothing, 0) is None  # type: ignore[arg-type]  # likewise
    assert device.tensorflow_memory(nothing) is None  # type: ignore[arg-type]  # likewise
    assert "fp16" not in device.torch_precisions(nothing)  # type: ignore[arg-type]  # likewise


def test_memory_beside_the_allocator_is_what_no_one_else_holds() -> None:
    memory = devices.named("cuda:0").torch_memory(_torch(), GIB)
    assert memory == Memory(4 * GIB, GIB, overhead=2 * GIB, total=8 * GIB, retries=0, ooms=1)
    assert devices.named("cuda:0").torch_memory(_torch(initialized=False), 0) is None


def test_memory_beside_the_allocator_stays_what_it_was_before_another_trial_came() -> None:
    """By turns: at the end the other one's memory is there as well, of which nobody told this one."""
    card, without, alone = devices.named("cuda:0"), _torch(initialized=False), _torch()
    card.torch_note_overhead(without, GIB)
    card.torch_note_overhead(alone, GIB + GIB // 2)
    memory = card.torch_memory(alone, 0)
    assert memory is not None and memory.overhead == 3 * GIB // 2


def test_a_peak_that_the_script_resets_is_told_all_the_same() -> None:
    card, torch = devices.named("cuda:0"), _torch()
    torch.cuda.peak = 2 * GIB
    card.torch_note_peaks(torch)
    torch.cuda.peak = GIB
    memory = card.torch_memory(torch, 0)
    assert memory is not None and (memory.reserved, memory.allocated) == (4 * GIB, 2 * GIB)


def _tensorflow(*limits_mib: int, grows: bool = False) -> Any:
    """TensorFlow on a card of which 3 GiB were in use at most."""
    limits = [SimpleNamespace(memory_limit=limit) for limit in limits_mib]
    experimental = SimpleNamespace(
        get_memory_info=lambda place: {"current": GIB, "peak": 3 * GIB}, get_memory_growth=lambda card: grows
    )
    config = SimpleNamespace(
        list_physical_devices=lambda kind: [kind], get_logical_device_configuration=lambda card: limits or None,
        experimental=experimental,
    )  # fmt: skip
    return SimpleNamespace(config=config)


@pytest.mark.parametrize(
    ("tensorflow", "pool"),
    [
        (_tensorflow(4096), 4 * GIB),
        (_tensorflow(grows=True), 0),
        (_tensorflow(), None),
        (_tensorflow(4096, 4096), None),
    ],
    ids=["limited", "grows", "takes all", "two devices of one card"],
)
def test_tensorflow_tells_its_peak_and_what_is_known_of_its_pool(tensorflow: Any, pool: int | None) -> None:
    assert devices.named("cuda:0").tensorflow_memory(tensorflow) == Memory(3 * GIB, 3 * GIB, pool=pool)


def _jax(stats: dict[str, int] | None) -> Any:
    return SimpleNamespace(local_devices=lambda: [SimpleNamespace(memory_stats=lambda: stats)])


@pytest.mark.parametrize(("told", "peak"), [({"peak_bytes_used": 3 * GIB}, 3 * GIB), ({}, GIB)])
def test_pytorch_tells_the_memory_of_a_chip(
    told: dict[str, int], peak: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names that torch_xla 2.9 has for it; nothing where the script has used no chip."""
    information = {"bytes_used": GIB, "bytes_limit": 16 * GIB, **told}
    runtime = SimpleNamespace(
        _xla_runtime_is_initialized=lambda: True, _xla_memory_info=lambda place: information if place == "xla:0" else {}
    )
    chip = devices.named("tpu:0")
    monkeypatch.delitem(sys.modules, "torch_xla", raising=False)
    assert chip.torch_memory(_torch(), 0) is None
    monkeypatch.setitem(sys.modules, "torch_xla", SimpleNamespace(_XLAC=runtime, device=lambda: "xla:0"))
    assert chip.torch_memory(_torch(), 0) == Memory(peak, peak, total=16 * GIB)


@pytest.mark.parametrize(
    ("stats", "memory"),
    [
        (
            {"peak_bytes_in_use": 3 * GIB, "bytes_in_use": GIB, "bytes_limit": 6 * GIB, "pool_bytes": 5 * GIB},
            Memory(3 * GIB, 3 * GIB, total=6 * GIB, pool=5 * GIB),
        ),
        ({"peak_bytes_in_use": 3 * GIB, "bytes_limit": 6 * GIB}, Memory(3 * GIB, 3 * GIB, total=6 * GIB)),
        ({"bytes_in_use": GIB}, None),
        (None, None),
    ],
    ids=["as of today", "of an earlier version", "without a peak", "none"],
)
def test_jax_tells_its_peak_and_its_pool(stats: dict[str, int] | None, memory: Memory | None) -> None:
    """What it takes at its start isn't what the training needs: three quarters of the card."""
    assert devices.named("cuda:0").jax_memory(_jax(stats)) == memory == devices.named("tpu").jax_memory(_jax(stats))
    assert devices.named("cpu").jax_memory(_jax(stats)) is None


@pytest.mark.parametrize(
    ("backend", "ran_on", "missing"),
    [
        ("gpu", (), ""),
        ("cuda", ("gpu",), ""),
        ("gpu", ("cpu", "gpu"), ""),
        ("cpu", ("cpu",), "JAX sees no GPU here: the steps ran on the CPU"),
        ("gpu", ("cpu",), "JAX sees a GPU here, and the script has the steps run on another device (cpu)"),
    ],
)
def test_jax_on_another_device_is_missed_by_name(backend: str, ran_on: tuple[str, ...], missing: str) -> None:
    jax: Any = SimpleNamespace(default_backend=lambda: backend)
    assert devices.named("cuda:0").jax_missing(jax, ran_on) == missing


def test_memory_is_capped_when_the_script_first_touches_the_card() -> None:
    torch = _torch()
    devices.named("cuda:0").torch_cap_memory(torch, 2 * GIB)
    devices.named("cuda:0").torch_cap_memory(torch, 99 * GIB)
    assert torch.cuda.calls == ["later", (0.25, 0), "later", (1.0, 0)]


def test_a_card_is_waited_for_only_once_the_script_uses_it() -> None:
    used, unused = _torch(), _torch(initialized=False)
    devices.named("cuda:0").torch_synchronize(used)
    devices.named("cuda:0").torch_synchronize(unused)
    assert (used.cuda.calls, unused.cuda.calls) == (["synchronize"], [])


def test_a_card_is_left_alone_while_a_graph_of_it_is_captured() -> None:
    """To wait for it, or to have it tell when it is through, would end the capture with an error."""
    torch, card = _torch(capturing=True), devices.named("cuda:0")
    card.torch_synchronize(torch)
    assert card.torch_mark(torch) is None and not torch.cuda.calls
    assert card.torch_is_capturing(torch) and not devices.named("cpu").torch_is_capturing(torch)


@pytest.mark.parametrize(
    ("capability", "offered"), [(9, ["fp32", "tf32", "bf16"]), (7, ["fp32", "fp16"])], ids=["Hopper", "Volta"]
)
def test_formats_are_offered_by_what_the_card_computes_in(capability: int, offered: list[str]) -> None:
    assert devices.named("cuda:0").torch_precisions(_torch(capability=capability)) == offered


@pytest.mark.parametrize(("times_ms", "fetches_elsewhere", "idle_s"), [
    ((3.0, 7.5), False, 0.0045),
    ((3.0, 3.0, 7.5, 3.5), True, 0.0005),  # the stream that copies has nothing to do, and the other one trains
    ((3.0, 3.0, 3.5, 7.5), True, 0.0005),  # the script trains in a stream of its own
])
def test_what_a_card_is_idle_for_lies_between_two_marks(
    times_ms: tuple[float, ...], fetches_elsewhere: bool, idle_s: float
) -> None:  # fmt: skip
    times = iter(times_ms)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at_ms = next(times)

        def elapsed_time(self, other: Event) -> float:
            return other.at_ms - self.at_ms

    class Stream:
        def record_event(self, event: Event) -> None:
            torch.cuda.calls.append((self, event))

    torch, usual = _torch(), Stream()
    current = Stream() if fetches_elsewhere else usual
    torch.cuda.Event = Event
    torch.cuda.current_stream, torch.cuda.default_stream = lambda: current, lambda: usual
    card = devices.named("cuda:0")
    before, after = card.torch_mark(torch), card.torch_mark(torch)
    assert [stream for stream, _ in torch.cuda.calls] == [*dict.fromkeys((current, usual))] * 2
    assert card.torch_seconds(before, after) == pytest.approx(idle_s)
    assert card.torch_mark(_torch(initialized=False)) is None
    assert devices.named("cpu").torch_mark(torch) is None


TF32, IEEE, UNSET = (SimpleNamespace(fp32_precision=word) for word in ("tf32", "ieee", "none"))


class _Raising:
    """The older settings, once a script has used the newer ones."""

    @property
    def allow_tf32(self) -> bool:
        raise RuntimeError("mix of the legacy and new APIs")


class _NewMatmul(_Raising):
    def __init__(self, word: str) -> None:
        self.fp32_precision = word


@pytest.mark.parametrize(
    ("matmul", "cudnn", "rounding"),
    [
        (_NewMatmul("tf32"), SimpleNamespace(conv=IEEE), (True, False)),
        (_NewMatmul("none"), SimpleNamespace(conv=TF32), (False, True)),
        (_NewMatmul("ieee"), SimpleNamespace(conv=UNSET), (False, False)),
        (SimpleNamespace(allow_tf32=True), SimpleNamespace(allow_tf32=False), (True, False)),
        (SimpleNamespace(allow_tf32=False), SimpleNamespace(allow_tf32=True), (False, True)),
    ],
    ids=["new matmul", "new convolution", "new off", "old matmul", "old convolution"],
)
def test_rounding_is_read_in_the_words_of_the_version_at_hand(
    matmul: Any, cudnn: Any, rounding: tuple[bool, bool]
) -> None:
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn)
    assert devices.named("cuda:0").torch_rounding(SimpleNamespace(backends=backends)) == rounding  # type: ignore[arg-type]  # likewise


ROUNDINGS = {
    "": (False, False),
    "b.cuda.matmul.fp32_precision = 'tf32'": (True, False),
    "b.fp32_precision = 'tf32'; b.cuda.matmul.fp32_precision = 'ieee'": (False, True),
    "torch.set_float32_matmul_precision('high')": (True, False),
    "b.cuda.matmul.allow_tf32 = True; b.cudnn.allow_tf32 = True": (True, True),
    "torch.set_float32_matmul_precision('high'); b.cudnn.conv.fp32_precision = 'tf32'": (True, True),
}
# Settings last as long as the process, and mixed ones make PyTorch's own getters raise: each has its own process.
FORKS = """
import json, os, sys, warnings
warnings.simplefilter('ignore')
import torch
from tuner.child import devices
b = torch.backends
for settings in json.loads(sys.argv[1]):
    if os.fork() == 0:
        try:
            b.cudnn.allow_tf32 = False
            exec(settings)
            print(json.dumps([settings, devices.named('cuda:0').torch_rounding(torch)]), flush=True)
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def roundings() -> dict[str, tuple[bool, bool]]:
    """What is read after each of the settings."""
    command = [sys.executable, "-c", FORKS, json.dumps([*ROUNDINGS])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {settings: tuple(rounding) for settings, rounding in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("settings", ROUNDINGS)
def test_rounding_is_read_from_pytorch_itself(roundings: dict[str, tuple[bool, bool]], settings: str) -> None:
    assert roundings[settings] == ROUNDINGS[settings]


@pytest.mark.parametrize(
    ("told", "emulated"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\nbogomips\t: 5\n", ["bf16"]),
        ("flags\t\t: fpu avx512f\n", ["bf16"]),
        ("flags\t\t: fpu avx512f avx512_bf16\n", []),
        ("flags\t\t: fpu amx_bf16\n", []),
        ("Features\t: fp asimd bf16\n", []),
        ("Features\t: fp asimd\n", ["bf16"]),
        ("processor\t: 0\n", []),
        (None, []),
    ],
)
def test_a_processor_emulates_what_the_kernel_lists_no_instructions_for(
    told: str | None, emulated: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said where it doesn't tell: on another system than Linux."""
    listed = tmp_path / "cpuinfo"
    if told is not None:
        listed.write_text(told, encoding="ascii")
    monkeypatch.setattr(cpu, "CPUINFO", listed)
    assert devices.named("cpu").emulated_precisions() == emulated
    assert devices.named("cuda:0").emulated_precisions() == []
