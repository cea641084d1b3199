"""Asks the processor itself whether it rounds products of float32: a library may be allowed to, and not do it."""

from __future__ import annotations

from types import ModuleType

SIZE = 64
"""Rows and columns of the products that are looked at: enough for oneDNN to be given them."""
LOST_IN_BF16 = 1 + 2.0**-9
"""float32 and tf32 hold this number, bf16 doesn't: a product with 1 gives it back in full, or rounded."""


def rounds_to_bf16(torch: ModuleType) -> bool:
    """Whether a product of float32 on the CPU is rounded to bf16, as PyTorch is set now. Draws no random numbers.

    A processor without instructions that make bf16 worth it computes in float32 whatever it is allowed: its digits
    differ then in their last places, by another kernel, and show nothing.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        given = torch.full((SIZE, SIZE), LOST_IN_BF16, dtype=torch.float32, device="cpu")
        product = given @ torch.eye(SIZE, dtype=torch.float32, device="cpu")
        return bool(abs(float(product[0, 0]) - LOST_IN_BF16) > (LOST_IN_BF16 - 1) / 2)
