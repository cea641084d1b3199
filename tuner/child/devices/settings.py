"""PyTorch's settings for products of float32, in the words of the version at hand."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any


def rounds(
    products: object | None, as_asked_before: Callable[[], object], formats: Collection[str] = ("tf32", "bf16")
) -> bool:
    """Whether a kind of product rounds float32, to one of the ``formats`` of the device.

    ``products``: where its ``fp32_precision`` is, from PyTorch 2.9 on.

    The older settings (``as_asked_before``) are read where that is missing only: they raise once a script has used the
    new ones.
    """
    precision = getattr(products, "fp32_precision", None)
    if precision is None:
        return bool(as_asked_before())
    return precision in formats


def kept(torch: ModuleType) -> Callable[[], None]:
    """What sets all settings of float32 products as they are now.

    The older ones first, which set the newer ones, too (PyTorch 2.9 on), as what they mean; then these as they were.
    The older ones can't be read once a script has used the newer ones, and aren't set then.
    """
    backends = torch.backends
    owners: list[Any] = [
        backends, backends.cuda.matmul, backends.cudnn, getattr(backends.cudnn, "conv", None),
        getattr(backends.cudnn, "rnn", None), getattr(backends.mkldnn, "matmul", None),
        getattr(backends.mkldnn, "conv", None),
    ]  # fmt: skip
    newer = [(each, each.fp32_precision) for each in owners if getattr(each, "fp32_precision", None) is not None]
    try:
        older = (torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32)
    except RuntimeError:
        older = None

    def put_back() -> None:
        if older is not None:
            torch.set_float32_matmul_precision(older[0])
            backends.cudnn.allow_tf32 = older[1]
        for owner, value in newer:
            owner.fp32_precision = value

    return put_back
