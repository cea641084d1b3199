"""Storage-bound: each sample is read from a store that answers after a while, as a remote one does, and costs no CPU.

The store is a sleep: a disk of this machine would be in the page cache after the first epoch.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

SAMPLES, SIDE, CLASSES = 20_000, 16, 10


class Store:
    """Samples of 3 x 16 x 16 numbers, each there ``latency_s`` after it was asked for."""

    def __init__(self, latency_s: float):
        self.latency_s = latency_s
        self.images = torch.randn(64, 3, SIDE, SIDE)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.latency_s)
        return self.images[index % len(self.images)], index % CLASSES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--latency-ms", type=float, default=1.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Store(options.latency_ms / 1000), batch_size=options.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(options.epochs):
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
