"""``os.rename`` and its kin: what of the user's gets another name is copied, and both names mean what they should."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable

from .files import Overlay, missing
from .places import is_in


def _names(overlay: Overlay, src: object, dst: object) -> tuple[str, str] | None:
    """The absolute paths that are meant; None where a call isn't about such."""
    source, destination = overlay.absolute(src), overlay.absolute(dst)
    return None if source is None or destination is None else (source, destination)


def rename(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def call(src: object, dst: object, *args: object, **kwargs: object) -> object:
        names = _names(overlay, src, dst)
        if names is None:
            return original(src, dst, *args, **kwargs)
        source, destination = names
        with overlay.changing():
            here, there = overlay.view(source, follow=False), overlay.view(destination, follow=False)
            above, below = overlay.view(os.path.dirname(destination)), overlay.view(os.path.dirname(source))
            if below is None or not os.path.exists(below):
                raise missing(src)  # the system looks for the source's folder first
            if above is not None and os.path.lexists(above) and not os.path.isdir(above):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), src, None, dst)
            if here is None or above is None:
                raise missing(src)
            if not os.path.lexists(here) or here == there:
                return original(here, there or destination)  # fails, or does nothing
            _check_rename(overlay, (source, here), (destination, there))
            is_users = here == source and overlay.is_users(source, follow=False)
            if there is not None and there == destination and overlay.is_users(destination, follow=False):
                if _is_folder(there):
                    overlay.remove(destination)
                there = None
            target = overlay.target(destination, follow=False) if there is None else there
            overlay.stale_reads.is_written(overlay.entry(destination))
            if target != destination and (os.path.islink(here) or os.path.isdir(here)):
                overlay.relinks()
            if is_users:
                # The user's own stays as it is, and is copied: both names mean what they should from now on.
                _copy(overlay, source, target)
                overlay.remove(source)
            else:
                overlay.created.will_rename(here, target)
                _move(original, here, target)
                overlay.forget(source)
            return None

    return call


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _check_rename(overlay: Overlay, source: tuple[str, str], destination: tuple[str, str | None]) -> None:
    """Raises what the system would: of both the path that the script gives, and where that lies."""
    (path, here), (to, there) = source, destination
    folder = _is_folder(here)
    number = 0
    if folder and os.path.realpath(to).startswith(os.path.realpath(path) + os.sep):
        number = errno.EINVAL
    elif there is not None and os.path.lexists(there) and is_in(os.path.realpath(path), os.path.realpath(to)):
        number = errno.ENOTEMPTY
    elif there is not None and not os.path.isdir(os.path.dirname(there)):
        number = errno.ENOTDIR if os.path.lexists(os.path.dirname(there)) else errno.ENOENT
    elif there is not None and os.path.lexists(there):
        if folder != _is_folder(there):
            number = errno.ENOTDIR if folder else errno.EISDIR
        elif folder and overlay.listed(to, os.listdir(there)):
            number = errno.ENOTEMPTY
    if number:
        raise OSError(number, os.strerror(number), path, None, to)


def _copy(overlay: Overlay, source: str, target: str) -> None:
    """What the script sees at the path of the user's; what is made isn't data that are prepared."""
    here = overlay.view(source, follow=False)
    if here is None:
        return
    if not _is_folder(here):
        if os.path.lexists(target):
            os.unlink(target)
        overlay.created.will_make(target, model=True)
        shutil.copy2(here, target, follow_symlinks=False)
        return
    overlay.created.will_make(target, folder=True)
    os.makedirs(target, exist_ok=True)
    for name in overlay.listed(source, os.listdir(here)):
        _copy(overlay, os.path.join(source, name), os.path.join(target, name))


def _move(rename: Callable[..., object], source: str, target: str) -> None:
    """The trial's folder may lie on another disk than what the script renames."""
    try:
        rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, target)


def link(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def call(src: object, dst: object, *args: object, **kwargs: object) -> object:
        names = _names(overlay, src, dst)
        if names is None:
            return original(src, dst, *args, **kwargs)
        source, destination = names
        with overlay.changing():
            here, there = overlay.view(source), overlay.view(destination, follow=False)
            if here is None or (there is None and overlay.view(os.path.dirname(destination)) is None):
                raise missing(src)
            target = overlay.target(destination, follow=False) if there is None else there
            overlay.created.will_rename(here, target)
            if os.path.lexists(target) or here != source or not overlay.is_users(source):
                return original(here, target, *args, **kwargs)
            shutil.copy2(here, target)  # one content under two names, one of which the trial may write to
            return None

    return call


def symlink(overlay: Overlay, original: Callable[..., object]) -> Callable[..., object]:
    def call(src: object, dst: object, *args: object, **kwargs: object) -> object:
        destination = overlay.absolute(dst)
        if destination is None:
            return original(src, dst, *args, **kwargs)
        with overlay.changing():
            there = overlay.view(destination, follow=False)
            if there is None and overlay.view(os.path.dirname(destination)) is None:
                raise missing(dst)
            target = overlay.target(destination, follow=False) if there is None else there
            overlay.created.will_make(target)
            if target != destination:
                overlay.relinks()
            return original(src, dst if target == destination else target, *args, **kwargs)

    return call
