"""Train a small convolutional network on scikit-learn's 8x8 handwritten digits with Keras."""

import argparse
from pathlib import Path

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = Path(__file__).resolve().parent


def load_arrays(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """1797 grey images of 8x8 pixels with values 0 to 16, ten classes: training and validation."""
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[..., None]
    train_x, val_x, train_y, val_y = train_test_split(
        images, digits.target, test_size=0.2, random_state=seed, stratify=digits.target
    )
    return train_x, train_y, val_x, val_y


def build_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Conv2D(128, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(128, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.25),
            layers.Dense(10, activation="softmax", dtype="float32"),
        ]
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", type=Path, default=HERE / "checkpoints")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    keras.utils.set_random_seed(args.seed)
    train_x, train_y, val_x, val_y = load_arrays(args.seed)

    model = build_model()
    model.compile(
        optimizer=keras.optimizers.AdamW(args.lr),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        train_x,
        train_y,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=(val_x, val_y),
        callbacks=[keras.callbacks.ModelCheckpoint(args.checkpoints / "last.keras")],
        verbose=2,
    )


if __name__ == "__main__":
    main()
