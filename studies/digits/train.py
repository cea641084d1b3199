"""Train a small convolutional network on scikit-learn's 8x8 handwritten digits."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).resolve().parent


class Digits(Dataset):
    """1797 grey images of 8x8 pixels with values 0 to 16, ten classes."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.images = torch.from_numpy(images).float().div(16).unsqueeze(1)
        self.labels = torch.from_numpy(labels).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def build_datasets(seed: int) -> tuple[Digits, Digits]:
    digits = load_digits()
    train_x, val_x, train_y, val_y = train_test_split(
        digits.images, digits.target, test_size=0.2, random_state=seed, stratify=digits.target
    )
    return Digits(train_x, train_y), Digits(val_x, val_y)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 2 * 2, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(128, 10),
    )


def train_epoch(
    model: nn.Module,
    loader: DataLoader,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    """Run one epoch and return the mean training loss."""
    model.train()
    total = torch.zeros((), device=device)
    for inputs, targets in loader:
        images, labels = inputs.to(device), targets.to(device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
    return total.item() / len(loader.dataset)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    """Return the accuracy on the validation set."""
    model.eval()
    correct = torch.zeros((), device=device)
    for inputs, targets in loader:
        images, labels = inputs.to(device), targets.to(device)
        correct += (model(images).argmax(1) == labels).sum()
    return correct.item() / len(loader.dataset)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="loader processes")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    args.checkpoints.mkdir(parents=True, exist_ok=True)

    train_set, val_set = build_datasets(args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)

    model = build_model().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, train_loader, criterion, optimizer, device)
        accuracy = validate(model, val_loader, device)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch:3d}  loss {loss:.4f}  val_accuracy {accuracy:.4f}  {seconds:.2f} s", flush=True)
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            args.checkpoints / "last.pt",
        )


if __name__ == "__main__":
    main()
