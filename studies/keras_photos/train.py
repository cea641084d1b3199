"""Train a small residual network with Keras to tell from which part of which photograph a JPEG file was cut."""

import argparse
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from PIL import Image
from sklearn.datasets import load_sample_image

HERE = Path(__file__).resolve().parent
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
QUADRANTS = 4
CLASSES = len(PHOTOGRAPHS) * QUADRANTS
CROP = 128  # pixels a side, as stored
INPUT = 64  # pixels a side, as the network sees it


def cut_crops(folder: Path, count: int, seed: int) -> None:
    """Cut `count` random crops, evenly over the eight classes, into JPEG files; a folder that is there stays."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    rng = np.random.default_rng(seed)
    photographs = [Image.fromarray(load_sample_image(name)) for name in PHOTOGRAPHS]
    for index in range(count):
        label = index % CLASSES
        photograph, quadrant = divmod(label, QUADRANTS)
        image = photographs[photograph]
        half_width, half_height = image.width // 2, image.height // 2
        left = (quadrant % 2) * half_width + int(rng.integers(half_width - CROP + 1))
        top = (quadrant // 2) * half_height + int(rng.integers(half_height - CROP + 1))
        crop = image.crop((left, top, left + CROP, top + CROP))
        crop.save(unfinished / f"{index:05d}-{label}.jpg", quality=90)
    try:
        unfinished.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)


def list_files(folder: Path) -> tuple[list[str], list[int]]:
    files = sorted(folder.glob("*.jpg"))
    return [str(file) for file in files], [int(file.stem[-1]) for file in files]


def decode(file: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    image = tf.io.decode_jpeg(tf.io.read_file(file), channels=3)
    return tf.cast(image, tf.float32) / 255, label


def augment(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    image = tf.image.random_brightness(image, 0.2)
    image = tf.image.random_contrast(image, 0.7, 1.3)
    image = tf.image.random_saturation(image, 0.7, 1.3)
    image = tf.image.random_hue(image, 0.04)
    size = tf.random.uniform((), 90, CROP + 1, tf.int32)
    image = tf.image.random_crop(image, tf.stack([size, size, 3]))
    image = tf.image.resize(image, (INPUT, INPUT), method="bicubic")
    return tf.image.random_flip_left_right(image), label


def shrink(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.image.resize(image, (INPUT, INPUT), method="bicubic"), label


def build_datasets(args: argparse.Namespace) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    train_folder = args.data / f"train-{args.crops}-{args.seed}"
    val_folder = args.data / f"val-{args.val_crops}-{args.seed + 1}"
    cut_crops(train_folder, args.crops, args.seed)
    cut_crops(val_folder, args.val_crops, args.seed + 1)
    train = tf.data.Dataset.from_tensor_slices(list_files(train_folder))
    train = train.map(decode).shuffle(1000).map(augment).batch(args.batch_size)
    val = tf.data.Dataset.from_tensor_slices(list_files(val_folder))
    val = val.map(decode).map(shrink).batch(args.batch_size)
    return train, val


def residual_block(x: keras.KerasTensor, channels: int) -> keras.KerasTensor:
    """Two 3x3 convolutions with a shortcut around them; half the pixels a side."""
    y = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
    y = layers.BatchNormalization()(y)
    y = layers.ReLU()(y)
    y = layers.Conv2D(channels, 3, padding="same", use_bias=False)(y)
    y = layers.BatchNormalization()(y)
    shortcut = layers.Conv2D(channels, 1, strides=2, use_bias=False)(x)
    shortcut = layers.BatchNormalization()(shortcut)
    return layers.ReLU()(layers.Add()([y, shortcut]))


def build_model() -> keras.Model:
    inputs = keras.Input((INPUT, INPUT, 3))
    x = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    for channels in (16, 32, 64):
        x = residual_block(x, channels)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax", dtype="float32")(x))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--crops", type=int, default=2000, help="training crops to cut")
    parser.add_argument("--val-crops", type=int, default=400, help="validation crops to cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the crops are kept")
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    keras.utils.set_random_seed(args.seed)
    train, val = build_datasets(args)

    model = build_model()
    model.compile(
        optimizer=keras.optimizers.SGD(args.lr, momentum=args.momentum),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        train,
        epochs=args.epochs,
        validation_data=val,
        callbacks=[keras.callbacks.ModelCheckpoint(args.checkpoints / "last.keras")],
        verbose=2,
    )


if __name__ == "__main__":
    main()
