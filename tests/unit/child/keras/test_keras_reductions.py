"""What is told of a model of Keras."""

from __future__ import annotations

from tuner.child.keras.reductions import why_no_parts


def test_a_loss_that_is_not_compiled_is_told_to_be_unknown() -> None:
    """A layer's own (``add_loss``): "the loss is no mean over the batch (unknown)" claimed to know it."""
    assert why_no_parts("unknown") == "how the loss is taken over the batch isn't known"
    assert why_no_parts("sum") == "the loss is no mean over the batch (sum)"
