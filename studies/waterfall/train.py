"""Train a small convolutional network on JPEG files the slow way: every image decoded, one by one, in Python."""

import argparse
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

HERE = Path(__file__).resolve().parent
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
QUADRANTS = 4
CLASSES = len(PHOTOGRAPHS) * QUADRANTS
INPUT = 64  # pixels a side, as the network sees it


def cut_crops(folder: Path, count: int, size: int, seed: int) -> None:
    """Cut `count` random crops of `size` pixels a side, evenly over the eight classes, into JPEG files.

    A folder that is there stays. The photographs are enlarged until a quadrant holds a crop.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    rng = np.random.default_rng(seed)
    photographs = [Image.fromarray(load_sample_image(name)) for name in PHOTOGRAPHS]
    scale = math.ceil(2 * size / min(min(photograph.size) for photograph in photographs))
    photographs = [ImageOps.scale(photograph, scale) for photograph in photographs]
    for index in range(count):
        label = index % CLASSES
        photograph, quadrant = divmod(label, QUADRANTS)
        image = photographs[photograph]
        half_width, half_height = image.width // 2, image.height // 2
        left = (quadrant % 2) * half_width + int(rng.integers(half_width - size + 1))
        top = (quadrant // 2) * half_height + int(rng.integers(half_height - size + 1))
        crop = image.crop((left, top, left + size, top + size))
        crop.save(unfinished / f"{index:05d}-{label}.jpg", quality=90)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)


def list_files(folder: Path) -> tuple[list[str], list[int]]:
    files = sorted(folder.glob("*.jpg"))
    return [str(file) for file in files], [int(file.stem[-1]) for file in files]


def generate(
    files: list[str], labels: list[int], batch_size: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches without end, made by hand."""
    rng = np.random.default_rng(seed)
    images, targets = [], []
    while True:
        for index in rng.permutation(len(files)):
            image = Image.open(files[index]).convert("RGB").resize((INPUT, INPUT), Image.Resampling.BOX)
            pixels = np.asarray(image, dtype=np.float32) / 255
            if rng.random() < 0.5:
                pixels = pixels[:, ::-1]
            images.append(pixels)
            targets.append(labels[index])
            if len(images) == batch_size:
                yield np.stack(images), np.array(targets)
                images, targets = [], []


def decode(file: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    image = tf.io.decode_jpeg(tf.io.read_file(file), channels=3)
    return tf.image.resize(image, (INPUT, INPUT), method="area") / 255, label


def mirror(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.image.random_flip_left_right(image), label


def build_dataset(files: list[str], labels: list[int], batch_size: int) -> tf.data.Dataset:
    """The same batches from tf.data, as one writes it at first: nothing in parallel, nothing ahead, nothing kept."""
    dataset = tf.data.Dataset.from_tensor_slices((files, labels)).map(decode).shuffle(len(files)).map(mirror)
    return dataset.batch(batch_size, drop_remainder=True).repeat()


def build_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((INPUT, INPUT, 3)),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(64, activation="relu"),
            layers.Dense(CLASSES, activation="softmax", dtype="float32"),
        ]
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", choices=("generator", "tfdata"), default="generator", help="what makes the batches")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--crops", type=int, default=1000, help="training crops to cut")
    parser.add_argument("--size", type=int, default=384, help="pixels a side of a crop, as stored")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the crops are kept")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    keras.utils.set_random_seed(args.seed)
    folder = args.data / f"train-{args.crops}-{args.size}-{args.seed}"
    cut_crops(folder, args.crops, args.size, args.seed)
    files, labels = list_files(folder)
    if args.input == "generator":
        batches = generate(files, labels, args.batch_size, args.seed)
    else:
        batches = build_dataset(files, labels, args.batch_size)

    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(args.lr),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        run_eagerly=True,  # left on after debugging
    )
    model.fit(batches, steps_per_epoch=len(files) // args.batch_size, epochs=args.epochs, verbose=2)


if __name__ == "__main__":
    main()
