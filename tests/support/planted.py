"""A copy of the child with a fault of ours planted in it: what a study makes of it is seen with real processes."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from tuner.runner.launch import CHILD

LOADER = """
def _planted(install):
    def installs(watch):
        install(watch)
        def __iter__(loader):
            raise TypeError("planted in the watch on loaders")
        watch.torch.utils.data.DataLoader.__iter__ = __iter__
    return installs
LoaderWatch.install = _planted(LoaderWatch.install)
"""
OPTIMIZER = """
def _planted(install):
    def installs(watch):
        install(watch)
        def step(optimizer, *args, **kwargs):
            raise AttributeError("planted in the watch on optimizers")
        watch.torch.optim.SGD.step = step
    return installs
StepWatch.install = _planted(StepWatch.install)
"""
FILES = """
def _planted(install):
    def installs(overlay):
        install(overlay)
        opened = builtins.open
        def open(file, mode="r", *args, **kwargs):
            if mode == "r" and str(file).endswith("made.txt"):
                raise FileNotFoundError(f"planted in the watch on files: {file}")
            return opened(file, mode, *args, **kwargs)
        builtins.open = open
    return installs
install = _planted(install)
"""
TRAIN_ON_BATCH = """
def _planted(watch_keras):
    def watches_keras(watches, keras):
        watch_keras(watches, keras)
        if watches.fits is None:
            return
        trainer = next(cls for cls in keras.Model.__mro__ if "train_on_batch" in cls.__dict__)
        def train_on_batch(model, *args, **kwargs):
            raise ValueError("planted in the watch on Keras")
        trainer.train_on_batch = train_on_batch
    return watches_keras
Watches.watch_keras = _planted(Watches.watch_keras)
"""
SEGFAULT = """
def _planted(install):
    def installs(watch):
        import os, signal
        install(watch)
        def __call__(module, *args, **kwargs):
            os.kill(os.getpid(), signal.SIGSEGV)
        watch.torch.nn.Module.__call__ = __call__
    return installs
ModuleWatch.install = _planted(ModuleWatch.install)
"""


def plant(folder: Path, file: str, fault: str) -> Path:
    """A copy of the child below the folder whose ``file`` has the fault; gives what is launched of it."""
    copy = folder / "planted" / "tuner" / "child"
    shutil.copytree(CHILD.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / file).open("a", encoding="utf-8") as stream:
        stream.write("\n\n" + textwrap.dedent(fault))
    return copy / CHILD.name
