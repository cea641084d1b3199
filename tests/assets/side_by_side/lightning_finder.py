"""The script's training as a LightningModule, and Lightning's own search for the largest batch that fits.

    python lightning_finder.py digits
"""

import importlib
import json
import sys
from typing import Any

import lightning
from lightning.pytorch.tuner import Tuner
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

PARTS = importlib.import_module(sys.argv[1])


class Training(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.batch_size = PARTS.BATCH_SIZE
        self.model = PARTS.model()
        self.attempts: list[int] = []

    def training_step(self, batch: Any, index: int) -> Any:
        if index == 0:
            self.attempts.append(self.batch_size)
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def train_dataloader(self) -> Any:
        return DataLoader(PARTS.dataset(), batch_size=self.batch_size, shuffle=True)

    def configure_optimizers(self) -> Any:
        return PARTS.optimizer(self.parameters())


if __name__ == "__main__":
    training = Training()
    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    size = Tuner(trainer).scale_batch_size(training, mode="power", init_val=PARTS.BATCH_SIZE)
    failures = sum(tried > (size or 0) for tried in set(training.attempts))
    found = {"config": {"batch_size": size}, "attempts": len(set(training.attempts)), "failures": failures}
    print("answer:", json.dumps(found))
