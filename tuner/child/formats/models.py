"""Libraries that save models past Python's ``open``: in Rust (safetensors, tokenizers) and in C (HDF5)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from types import ModuleType

from ..files import Overlay
from ..patches import patch
from ..python_files import is_model_name, led


def divert_safetensors(overlay: Overlay, module: ModuleType) -> None:
    """The two functions behind ``save_file`` and ``load_file`` of every framework."""
    patch(module, "serialize_file", lambda original: led(original, 1, overlay.saving))
    patch(module, "safe_open", lambda original: led(original, 0, overlay.loading))


def divert_tokenizers(overlay: Overlay, module: ModuleType) -> None:
    """A tokenizer is prepared data, unless it is saved beside a model."""

    def saving(path: object) -> object:
        return overlay.saving(path, model=False)

    patch(module.Tokenizer, "save", lambda original: led(original, 1, saving))
    patch(module.Tokenizer, "from_file", lambda original: led(original, 0, overlay.loading))
    patch(module.models.Model, "save", lambda original: _save_vocabulary(overlay, original))


def _save_vocabulary(overlay: Overlay, original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """It chooses the names of its files: they are made in the trial's folder, and moved by Python's own calls."""

    def save(model: object, folder: object, *args: object, **kwargs: object) -> list[str]:
        name = overlay.absolute(folder)
        if name is None:
            return original(model, folder, *args, **kwargs)
        with tempfile.TemporaryDirectory(dir=overlay.folder) as made:
            paths = []
            for path in original(model, made, *args, **kwargs):
                paths.append(os.path.join(os.fsdecode(os.fspath(str(folder))), os.path.basename(path)))
                os.replace(path, paths[-1])
        return paths

    return save


def divert_h5py(overlay: Overlay, module: ModuleType) -> None:
    """Weights and data in HDF5."""

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(file: object, name: object, mode: str = "r", *args: object, **kwargs: object) -> None:
            if mode in ("w", "a", "x", "w-", "r+"):
                name = overlay.saving(
                    name, model=is_model_name(name), keep_content=mode in ("a", "r+"), exclusive=mode in ("x", "w-")
                )  # fmt: skip
            else:
                name = overlay.loading(name)
            original(file, name, mode, *args, **kwargs)

        return __init__

    patch(module.File, "__init__", wrap)
