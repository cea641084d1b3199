"""Mixed: making a batch and computing on it take about as long, so that what helps one side uncovers the other."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

SAMPLES, SIDE, CLASSES = 20_000, 48, 10


class Waves:
    """Pictures of 3 x 48 x 48 numbers, drawn and distorted by NumPy each time that one is asked for."""

    def __init__(self) -> None:
        rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
        self.rows, self.columns = rows.astype(np.float32), columns.astype(np.float32)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label, chance = index % CLASSES, np.random.default_rng(index)
        planes = []
        for _ in range(3):
            turn = chance.uniform(0, np.pi)
            along = np.cos(turn) * self.rows + np.sin(turn) * self.columns
            wave = np.sin(2 * np.pi * (label + 1) * along) + 0.3 * chance.standard_normal(along.shape, dtype=np.float32)
            planes.append(np.clip(wave, -1.0, 1.0) ** 3)
        return torch.from_numpy(np.stack(planes).astype(np.float32)), label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Waves(), batch_size=options.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
