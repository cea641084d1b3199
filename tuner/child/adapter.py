"""How a framework is instrumented: what its folder has to offer, and what is done right after each import.

To add a framework: a folder with a class that inherits ``Adapter``, and one line in the list in ``adapters.py``. An
adapter is made once a trial, before the script runs, with the trial's ``Session``. It imports nothing: ``libraries``
says which modules it is waiting for, the framework's own and those of everything that is built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

from .feeds import FED
from .files import Overlay
from .records import FrameworkSeen
from .session import ClockHooks, Session


@dataclass(frozen=True)
class Library:
    """What is done right after a module was imported, in this order; each part may be left out.

    ``oldest``: the first version that was tried, (major, minor); an older one is left alone and told of.
    ``is_framework``: the module is a framework that may train: it is announced, ``install`` is only called while no
    other framework trains, and the adapter's clock hooks and observation hold from then on.
    ``seed``: called with the shift of all seeds, in seeded trials. ``divert``: makes what the library writes go to the
    trial's folder, in measured trials. ``configure``: what has to be set whichever framework trains.
    ``install``: settings and patches. ``feed``: called instead where a framework trains that has no loaders of its own,
    and may be fed by this one's: it adds a ``Feed``.
    """

    install: Callable[[ModuleType], None] = lambda module: None
    feed: Callable[[ModuleType], None] = lambda module: None
    is_framework: bool = False
    oldest: tuple[int, int] = (0, 0)
    seed: Callable[[int, ModuleType], None] | None = None
    divert: Callable[[Overlay, ModuleType], None] | None = None
    configure: Callable[[ModuleType], None] | None = None


class Adapter(ClockHooks, Protocol):
    """One trial's instrumentation of one framework.

    ``framework`` is what ``Knowledge.framework`` says where it trains, and the name under which it counts steps:
    ``session.step(adapter.framework)``. The clock's hooks (``synchronize``, ``activity``, ``on_block``, ``ready``) are
    asked once this framework is the one that trains, and only after one of its libraries that are frameworks was
    imported.
    """

    framework: str

    @property
    def libraries(self) -> Mapping[str, Library]:
        """Full name of a module → what is done right after its import."""
        ...

    def observe(self) -> None:
        """Called once, when the window has ended or the script has: facts to ``session.facts``, evidence of knobs."""


def instrument(session: Session, adapter: Adapter, module: ModuleType, overlay: Overlay | None = None) -> None:
    """Does what the adapter wants done after the import of this module. Without ``overlay`` nothing is diverted.

    Raises ``RuntimeError`` for a version that is too old, and whatever the adapter's own functions raise.
    """
    library = adapter.libraries[module.__name__]
    _check_version(module, library.oldest)
    if library.is_framework:
        session.recorder.emit(FrameworkSeen(module.__name__, str(module.__version__), session.device.label))
    shift = session.request.seed
    if library.seed is not None and shift is not None:
        library.seed(shift, module)
    if library.divert is not None and overlay is not None:
        library.divert(overlay, module)
    if library.configure is not None:
        library.configure(module)
    if library.is_framework and not session.may_be_of(adapter.framework):
        if session.trained_by in FED:
            library.feed(module)
        return  # it is here for something else: another framework's data, or one of its layers
    library.install(module)
    if library.is_framework and session.measuring:
        session.attend(adapter.framework, adapter, adapter.observe)


def _check_version(module: ModuleType, oldest: tuple[int, int]) -> None:
    if oldest == (0, 0):
        return
    version = str(module.__version__)
    if tuple(int(part) for part in version.partition("+")[0].split(".")[:2]) < oldest:
        raise RuntimeError(f"{module.__name__} {version} is older than {oldest[0]}.{oldest[1]}")
