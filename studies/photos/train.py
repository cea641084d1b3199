"""Train a small residual network to tell from which part of which photograph a JPEG crop was taken."""

import argparse
import io
import math
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_image
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).resolve().parent
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
QUADRANTS = 4
CLASSES = len(PHOTOGRAPHS) * QUADRANTS
CROP = 128  # pixels a side, as stored
INPUT = 64  # pixels a side, as the network sees it
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def cut_crops(count: int, seed: int) -> tuple[list[bytes], list[int]]:
    """Cut `count` random crops, evenly over the eight classes, and code each as a JPEG."""
    rng = np.random.default_rng(seed)
    photographs = [Image.fromarray(load_sample_image(name)) for name in PHOTOGRAPHS]
    coded, labels = [], []
    for index in range(count):
        label = index % CLASSES
        photograph, quadrant = divmod(label, QUADRANTS)
        image = photographs[photograph]
        half_width, half_height = image.width // 2, image.height // 2
        left = (quadrant % 2) * half_width + int(rng.integers(half_width - CROP + 1))
        top = (quadrant // 2) * half_height + int(rng.integers(half_height - CROP + 1))
        buffer = io.BytesIO()
        image.crop((left, top, left + CROP, top + CROP)).save(buffer, format="JPEG", quality=90)
        coded.append(buffer.getvalue())
        labels.append(label)
    return coded, labels


def uniform(low: float, high: float) -> float:
    """A random number from torch's generator, which the DataLoader seeds anew in every worker."""
    return low + (high - low) * torch.rand(()).item()


def random_resized_crop(image: Image.Image) -> Image.Image:
    area = image.width * image.height * uniform(0.5, 1.0)
    aspect = math.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
    width = min(image.width, round(math.sqrt(area * aspect)))
    height = min(image.height, round(math.sqrt(area / aspect)))
    left = round(uniform(0, image.width - width))
    top = round(uniform(0, image.height - height))
    box = (left, top, left + width, top + height)
    return image.resize((INPUT, INPUT), Image.Resampling.BICUBIC, box=box)


def color_jitter(image: Image.Image) -> Image.Image:
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhance(image).enhance(uniform(0.7, 1.3))
    hue, saturation, value = image.convert("HSV").split()
    shift = round(uniform(-10, 10))
    hue = hue.point([(level + shift) % 256 for level in range(256)])
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


def to_tensor(image: Image.Image) -> torch.Tensor:
    pixels = (np.asarray(image, dtype=np.float32) / 255 - MEAN) / STD
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


class Crops(Dataset):
    """JPEG-coded crops, decoded and (for training) augmented each time an item is asked for."""

    def __init__(self, count: int, seed: int, augment: bool):
        self.coded, self.labels = cut_crops(count, seed)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.coded[index])).convert("RGB")
        if self.augment:
            image = color_jitter(image)
            image = random_resized_crop(image)
            if uniform(0, 1) < 0.5:
                image = ImageOps.mirror(image)
        else:
            image = image.resize((INPUT, INPUT), Image.Resampling.BICUBIC)
        return to_tensor(image), self.labels[index]


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        Block(16, 16, stride=2),
        Block(16, 32, stride=2),
        Block(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
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
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0, help="loader processes")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--crops", type=int, default=2000, help="training crops to cut")
    parser.add_argument("--val-crops", type=int, default=400, help="validation crops to cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    args.checkpoints.mkdir(parents=True, exist_ok=True)

    train_set = Crops(args.crops, seed=args.seed, augment=True)
    val_set = Crops(args.val_crops, seed=args.seed + 1, augment=False)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, num_workers=args.workers)

    model = build_model().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )

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
