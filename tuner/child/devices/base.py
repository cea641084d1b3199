"""What frameworks ask of a kind of device. Frameworks are passed in as modules: nothing here imports one.

What the base class does is right for a device that works at once, and whose memory is the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import ModuleType
from typing import ClassVar, NamedTuple

from ..records import Memory


class Rounding(NamedTuple):
    """Whether products of float32 are rounded to a shorter format, such as tf32, in each kind of product."""

    matmul: bool
    convolution: bool


class Device:
    """``label``: as the parent names it, ``cuda:0``. ``torch_type``: PyTorch's word for the kind, as autocast takes it.

    ``torch_optimizer_default``: the implementation of an optimizer's update that PyTorch takes there by itself; ""
    where that is the plain loop. ``torch_rounded``: the value of the knob "precision" for products of float32 that are
    rounded on the way. ``tensorflow_place``: where TensorFlow puts what is to run on it.
    ``tensorflow_strategy``: the knob value of "strategy" without which TensorFlow leaves it idle; "" for none.
    ``asynchronous``: whether it works behind the script's back, which runs ahead of it until it is waited for.
    ``xla_runs_in_threads``: whether what XLA has compiled for it runs in threads of this process, so that their time
    shows that it ran. ``may_be_several``: whether frameworks may take it for several devices, which are all
    this one. ``jax_may_round``: whether JAX's products of float32 are computed there in other formats, where they are
    asked for.
    """

    kind: ClassVar[str]
    torch_type: ClassVar[str]
    torch_optimizer_default: ClassVar[str] = ""
    torch_rounded: ClassVar[str] = "tf32"
    tensorflow_place: ClassVar[str] = "/CPU:0"
    tensorflow_strategy: ClassVar[str] = ""
    asynchronous: ClassVar[bool] = False
    xla_runs_in_threads: ClassVar[bool] = False
    may_be_several: ClassVar[bool] = False
    jax_may_round: ClassVar[bool] = False

    def __init__(self, label: str) -> None:
        self.label = label

    # PyTorch

    def torch_synchronize(self, torch: ModuleType) -> None:
        """Waits for what was given to the device; never makes the script's first use of it."""

    def torch_is_capturing(self, torch: ModuleType) -> bool:
        """Whether what the script gives the device is only noted down, as a CUDA graph: nothing may wait for it."""
        return False

    def torch_mark(self, torch: ModuleType) -> object | None:
        """A mark that the device passes after all that it was given by now; None where it works at once."""
        return None

    def torch_seconds(self, before: object, after: object) -> float:
        """Seconds between two marks that the device has passed."""
        return 0.0

    def torch_cap_memory(self, torch: ModuleType, most_bytes: int) -> None:
        """Has the allocator refuse more than so many bytes: a config that takes too much fails, and no neighbour."""

    def torch_memory(self, torch: ModuleType, used_by_others: int) -> Memory | None:
        """Peaks of the device's own memory; None where it has none, or wasn't used. ``used_by_others``: in bytes."""
        return None

    def torch_note_overhead(self, torch: ModuleType, used_by_others: int) -> None:
        """Notes what is held beside PyTorch's allocator, for ``torch_memory``: others come, and can't be told apart."""

    def torch_note_peaks(self, torch: ModuleType) -> None:
        """Called before the script resets the peaks that ``torch_memory`` gives."""

    def torch_precisions(self, torch: ModuleType) -> list[str]:
        """Knob values of "precision" that the device computes in."""
        return ["fp32", "bf16"]

    def torch_set_rounding(self, torch: ModuleType, rounds: bool) -> None:
        """Whether products of float32 may be rounded on the way (``torch_rounded``), where the device can."""

    def torch_kept_rounding(self, torch: ModuleType) -> Callable[[], None]:
        """What sets PyTorch's rounding of float32 as it is now, whatever was set meanwhile."""
        return lambda: None

    def torch_rounding(self, torch: ModuleType) -> Rounding:
        """Which products of float32 are rounded on the way, as PyTorch is set now. Never raises for its settings."""
        return Rounding(matmul=False, convolution=False)

    def torch_seen_rounding(self, torch: ModuleType) -> bool:
        """Whether products are rounded where PyTorch is set to; a device that always obeys isn't asked."""
        return True

    def emulated_precisions(self) -> list[str]:
        """Those that it has no instructions for, as far as it tells: libraries convert numbers for each operation."""
        return []

    # TensorFlow

    def tensorflow_cards(self, tf: ModuleType) -> list[object]:
        """TensorFlow's own objects for devices of this kind that have memory of their own."""
        return []

    def tensorflow_synchronize(self, tf: ModuleType) -> None:
        """Waits for what was given to the device."""

    def tensorflow_set_growth(self, tf: ModuleType, grows: bool) -> None:
        """Whether memory is taken as it is needed. Before the runtime starts."""

    def tensorflow_growth(self, tf: ModuleType) -> bool | None:
        """What that is set to; None where the device has no such thing."""
        return None

    def tensorflow_cap_memory(self, tf: ModuleType, most_bytes: int) -> None:
        """Takes so many bytes of the device and no more. Before the runtime starts."""

    def tensorflow_memory(self, tf: ModuleType) -> Memory | None:
        """Peak of the device's own memory; None where it has none."""
        return None

    def tensorflow_missing(self, tf: ModuleType) -> str:
        """Why the device can't have been used; "" where it can."""
        return ""

    def tensorflow_precisions(self) -> list[str]:
        """Knob values of "precision" that the device computes in."""
        return ["fp32", "bf16"]

    def tensorflow_rounds(self, tf: ModuleType) -> bool:
        """Whether products of float32 are rounded to tf32."""
        return False

    # Keras' other backends

    def torch_missing(self, torch: ModuleType) -> str:
        """Why the device can't have been used; "" where it can."""
        return ""

    def jax_missing(self, jax: ModuleType, platforms: Collection[str] = ()) -> str:
        """Why the device can't have been used; "" where it can. ``platforms``: JAX's names of what the results of a
        step lie on, where that is known: a script may choose another one than JAX does (``jax_default_device``).
        """
        return ""

    def jax_memory(self, jax: ModuleType) -> Memory | None:
        """Peak of the device's own memory; None where it has none, or JAX doesn't count it."""
        return None

    def jax_precisions(self, jax: ModuleType) -> list[str]:
        """Knob values of "precision" that JAX's products of float32 may be asked for."""
        return ["fp32"]


def told_by_jax(jax: ModuleType) -> Memory | None:
    """The peak that JAX's runtime counts on its first device; None where it counts none."""
    stats = jax.local_devices()[0].memory_stats()
    if not stats or "peak_bytes_in_use" not in stats:
        return None
    # What JAX takes at its start isn't what the training needs: the pool only says how much there is.
    peak, pool = int(stats["peak_bytes_in_use"]), stats.get("pool_bytes")
    return Memory(
        reserved=peak, allocated=peak, total=int(stats.get("bytes_limit", 0)), pool=None if pool is None else int(pool)
    )
