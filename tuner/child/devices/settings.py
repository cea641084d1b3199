"""PyTorch's settings for products of float32, in the words of the version at hand."""

from __future__ import annotations

from collections.abc import Callable


def rounds(products: object | None, as_asked_before: Callable[[], object]) -> bool:
    """Whether a kind of product rounds float32. ``products``: where its ``fp32_precision`` is, from PyTorch 2.9 on.

    The older settings (``as_asked_before``) are read where that is missing only: they raise once a script has used the
    new ones.
    """
    precision = getattr(products, "fp32_precision", None)
    if precision is None:
        return bool(as_asked_before())
    return precision in ("tf32", "bf16")
