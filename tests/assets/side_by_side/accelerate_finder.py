"""The script's training under accelerate, and its own search for a batch that fits, from above.

    python accelerate_finder.py digits
"""

import importlib
import json
import sys
from itertools import islice

from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

PARTS = importlib.import_module(sys.argv[1])
DATA = PARTS.dataset()
STEPS = 3
START = max(PARTS.BATCH_SIZE * 2**doubled for doubled in range(20) if PARTS.BATCH_SIZE * 2**doubled <= len(DATA))
"""It only ever comes down, so one begins with the largest that makes sense: that of which an epoch holds one."""
ATTEMPTS: list[int] = []


@find_executable_batch_size(starting_batch_size=START)  # type: ignore[untyped-decorator]
def train(batch_size: int) -> int:
    ATTEMPTS.append(batch_size)
    accelerator = Accelerator()
    accelerator.free_memory()
    model = PARTS.model()
    model, optimizer, loader = accelerator.prepare(
        model, PARTS.optimizer(model.parameters()), DataLoader(DATA, batch_size=batch_size, shuffle=True)
    )
    for images, labels in islice(loader, STEPS):
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(images), labels))
        optimizer.step()
    return batch_size


if __name__ == "__main__":
    size = train()
    found = {"config": {"batch_size": size}, "attempts": len(ATTEMPTS), "failures": len(ATTEMPTS) - 1}
    print("answer:", json.dumps(found))
