"""PyTorch writes past ``open``: what would overwrite a file of the user's goes to the trial's folder, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType

from ..files import Overlay
from ..mapped import is_kept_private
from ..patches import patch
from ..python_files import Result, led, with_path

_OF_STATES = ("state_dict", "model_state_dict", "optimizer_state_dict", "param_groups")


def divert_torch(overlay: Overlay, torch: ModuleType) -> None:
    """``torch.save`` writes through C++, and so do TorchScript, exported programs, packages and mapped files."""
    patch(torch, "save", lambda original: _save(overlay, original))
    patch(torch, "load", lambda original: led(original, 0, overlay.loading))
    patch(torch.jit, "save", lambda original: led(original, 1, overlay.saving))
    patch(torch.jit, "load", lambda original: led(original, 0, overlay.loading))
    for module in (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule):
        if "save" in vars(module):
            patch(module, "save", lambda original: led(original, 1, overlay.saving))
    if hasattr(torch, "export"):
        patch(torch.export, "save", lambda original: led(original, 1, overlay.saving))
        patch(torch.export, "load", lambda original: led(original, 0, overlay.loading))
    if hasattr(torch, "package"):
        patch(torch.package.PackageExporter, "__init__", lambda original: led(original, 1, overlay.saving))
        patch(torch.package.PackageImporter, "__init__", lambda original: led(original, 1, overlay.loading))
    profile, trace = torch.autograd.profiler.profile, partial(overlay.saving, model=False)
    patch(profile, "export_chrome_trace", lambda original: led(original, 1, trace))
    for owner in (torch, torch.UntypedStorage):
        patch(owner, "from_file", lambda original: _mapped(overlay, original))


def _mapped(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """A file in memory; what is written to a shared one goes to the file, unless that is a large one of the user's."""

    def from_file(filename: object, *args: object, **kwargs: object) -> Result:
        is_shared = args[0] if args else kwargs.get("shared")
        if is_shared and is_kept_private(overlay, filename):
            private = ((False, *args[1:]), kwargs) if args else (args, {**kwargs, "shared": False})
            with suppress(RuntimeError):  # more is asked for than it holds, or than memory does
                return original(filename, *private[0], **private[1])
        place = overlay.saving(filename, model=False, keep_content=True) if is_shared else overlay.loading(filename)
        return original(place, *args, **kwargs)

    return from_file


def _save(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def call(*args: object, **kwargs: object) -> Result:
        model = is_model(args[0] if args else kwargs.get("obj"))
        args, kwargs = with_path(original, 1, lambda path: overlay.saving(path, model=model), args, kwargs)
        return original(*args, **kwargs)

    return call


def is_model(saved: object) -> bool:
    """Whether it is a model, or the state of one or of its training, and not prepared data.

    A state has names of parameters, or is PyTorch's own; a checkpoint holds such states beside other things.
    """
    if hasattr(saved, "state_dict") or hasattr(saved, "_metadata"):
        return True
    if not isinstance(saved, Mapping):
        return False
    names = [str(name) for name in saved]
    if any(name in _OF_STATES or name.rpartition(".")[2] in ("weight", "bias") for name in names):
        return True
    return any(isinstance(value, Mapping) and is_model(value) for value in saved.values())
