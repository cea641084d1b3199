"""How fast one setting trains, in samples a second: a few steps to warm up, then three seconds of them."""

import os
import time
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

WARMUP_STEPS, TIMED_S = 10, 3.0
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def space(parts: Any) -> dict[str, list[Any]]:
    """What is turned, and to which values; the script's own come first."""
    cores = len(os.sched_getaffinity(0))
    return {
        "batch_size": [parts.BATCH_SIZE * factor for factor in (1, 2, 4, 8, 16)],
        "num_workers": sorted({0, 1, 2, cores, 2 * cores}),
        "threads": list(dict.fromkeys([torch.get_num_threads(), 1])),
        "precision": ["fp32", "bf16"],
        "channels_last": [False, True],
        "optimizer": ["default", "foreach", "fused"],
        "compile": ["off", "default"],
    }


def samples_per_second(parts: Any, options: dict[str, Any]) -> float:
    torch.set_num_threads(options["threads"])
    loader = DataLoader(
        parts.dataset(), batch_size=options["batch_size"], shuffle=True, num_workers=options["num_workers"],
        persistent_workers=options["num_workers"] > 0, pin_memory=DEVICE == "cuda",
    )  # fmt: skip
    layout = torch.channels_last if options["channels_last"] else torch.contiguous_format
    model = parts.model().to(DEVICE, memory_format=layout)
    chosen = options["optimizer"]
    optimizer = parts.optimizer(model.parameters(), **({chosen: True} if chosen != "default" else {}))
    forward = torch.compile(model) if options["compile"] == "default" else model
    steps, samples, start = 0, 0, 0.0
    while True:
        for images, labels in loader:
            with torch.autocast(DEVICE, torch.bfloat16, enabled=options["precision"] == "bf16"):
                loss = cross_entropy(forward(images.to(DEVICE, memory_format=layout)), labels.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(labels)
            if steps == WARMUP_STEPS:
                loss.item()
                samples, start = 0, time.perf_counter()
            elif steps > WARMUP_STEPS and time.perf_counter() - start > TIMED_S:
                loss.item()
                return samples / (time.perf_counter() - start)
