"""Overhead-bound: many small layers and a small batch, so that what a step costs besides its samples decides."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, FEATURES, CLASSES = 20_000, 32, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES)
    targets = (inputs @ torch.randn(FEATURES, CLASSES)).argmax(1)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=options.batch_size, shuffle=True)
    layers = []
    for _ in range(options.layers):
        layers += [nn.Linear(FEATURES, FEATURES), nn.LayerNorm(FEATURES), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(FEATURES, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        total = 0.0
        for batch, labels in loader:
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}  loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
