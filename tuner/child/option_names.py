"""Which options of a script are known to be a knob's: the only ones that ``Knowledge.options`` may have set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

OPTION_NAMES: Mapping[str, tuple[str, ...]] = {
    "batch_size": (
        "batch_size", "batch", "bs", "b", "bsz", "batch_sz", "batch_size_train", "batch_size_per_device",
        "batch_size_per_gpu", "ims_per_batch", "images_per_batch", "imgs_per_batch", "local_batch_size", "mini_batch",
        "mini_batch_size", "per_device_batch_size", "per_device_train_batch_size", "per_gpu_batch_size",
        "per_gpu_train_batch_size", "samples_per_gpu", "train_batch", "train_batch_size", "train_bs",
        "training_batch_size",
    ),
    "num_workers": ("num_workers", "workers", "nworkers", "n_workers", "dataloader_num_workers", "j"),
    "grad_accumulation": (
        "gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum", "accum_iter", "accum_steps",
        "accumulation_steps", "grad_acc_steps", "grad_accum_every", "grad_accum_steps", "grad_accumulation_steps",
        "gradient_accumulate_every", "gradient_accumulation", "gradient_accumulation_iters",
    ),
}  # fmt: skip
"""The names that public training scripts give to options for these knobs."""

_TRAINING = frozenset({"train", "training", "fit"})
"""Words by which an option or a group of them is the training's."""
_NOT_TRAINING = frozenset({"eval", "evaluation", "val", "valid", "validation", "test", "inference", "generation"})
"""A group of options that is called so isn't of the training."""


def is_named(destination: str, knob: str) -> bool:
    """Whether an option of this destination is called as the knob is, also in a group: ``config.batch_size``."""
    *groups, plain = destination.lower().replace("-", "_").split(".")
    if any(_NOT_TRAINING.intersection(group.split("_")) for group in groups):
        return False
    names = (knob, *OPTION_NAMES.get(knob, ()))
    return plain in names or plain.replace("_", "") in {name.replace("_", "") for name in names}


def likeliest(destinations: Sequence[str]) -> list[str]:
    """Those of several options for one knob that are likeliest the training's: named after it, else in no group."""
    words = {each: _TRAINING.intersection(re.split(r"[._-]", each.lower())) for each in destinations}
    ranks = {each: (bool(words[each]), "." not in each) for each in destinations}
    return [each for each in destinations if ranks[each] == max(ranks.values())]


def is_option_of(knob: str, destination: str) -> bool:
    """Whether a profile may set the option for the knob. A profile may come from anywhere: it sets knobs only."""
    return knob in OPTION_NAMES and is_named(destination, knob)
