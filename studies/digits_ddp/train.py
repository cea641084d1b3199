"""Train a wide network on scikit-learn's 8x8 handwritten digits in several processes, which exchange gradients."""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

HERE = Path(__file__).resolve().parent


class Digits(Dataset):
    """1797 grey images of 8x8 pixels with values 0 to 16, ten classes."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.images = torch.from_numpy(images).float().div(16)
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


def build_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(width, 10),
    )


def train_epoch(
    model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Run one epoch and return the mean training loss of this process's share."""
    model.train()
    total = torch.zeros(())
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total / len(loader)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> float:
    """Return the accuracy on the validation set."""
    model.eval()
    correct = torch.zeros(())
    for images, labels in loader:
        correct += (model(images).argmax(1) == labels).sum()
    return correct.item() / len(loader.dataset)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64, help="of each process")
    parser.add_argument("--workers", type=int, default=0, help="loader processes of each process")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--weight-decay", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:  # one process, without a launcher
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    if rank == 0:
        args.checkpoints.mkdir(parents=True, exist_ok=True)

    train_set, val_set = build_datasets(args.seed)
    sampler = DistributedSampler(train_set, seed=args.seed)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)

    model = DistributedDataParallel(build_model(args.width))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)

    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)
        loss = train_epoch(model, train_loader, criterion, optimizer)
        dist.all_reduce(loss)
        if rank == 0:
            accuracy = validate(model.module, val_loader)
            seconds = time.perf_counter() - start
            loss_text = f"{loss.item() / dist.get_world_size():.4f}"
            print(f"epoch {epoch:3d}  loss {loss_text}  val_accuracy {accuracy:.4f}  {seconds:.2f} s", flush=True)
            torch.save(
                {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()},
                args.checkpoints / "last.pt",
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
