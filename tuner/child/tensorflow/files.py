"""TensorFlow's checkpoints, saved models and summaries are written and read through C++, past ``open``.

New ones are written where the script says, and noted. Where files of the user's would be overwritten, TensorFlow writes
into a folder of ours, and each file goes from there to where Python's own calls are led: whoever asks sees it. What it
reads, it reads where the files lie; where some of them were diverted, through a folder of links to them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..files import Overlay
from ..folders import place_for
from ..patches import instead, patch
from ..places import is_in
from ..python_files import Result, led
from . import data_files, gfile

_OF_SAVED_MODELS = ("saved_model.pb", "fingerprint.pb", "keras_metadata.pb", "variables", "assets")
"""Names in a saved model's folder begin so."""
_LINKS = "tensorflow"
"""In the trial's folder: links to the files that TensorFlow is to read."""


def divert_checkpoint(overlay: Overlay, module: ModuleType) -> None:
    """What ``tf.train.Checkpoint`` and its manager write and read by."""
    patch(module.TrackableSaver, "save", lambda original: _checkpoint_written(overlay, original, module))
    patch(module.TrackableSaver, "restore", lambda original: led(original, 1, lambda at: _seen_prefix(overlay, at)))


def divert_checkpoint_reader(overlay: Overlay, module: ModuleType) -> None:
    """What lists a checkpoint's variables."""
    patch(module, "NewCheckpointReader", lambda original: led(original, 0, lambda at: _seen_prefix(overlay, at)))


def divert_saver(overlay: Overlay, module: ModuleType) -> None:
    """``Saver`` of TensorFlow 1: its session writes and reads the files, or where there is none, it does."""
    patch(module.Saver, "save", lambda original: _by_session(overlay, original))
    patch(module.Saver, "restore", lambda original: _by_session(overlay, original))
    patch(module.Saver, "_build_eager", lambda original: _eagerly(overlay, original))


def divert_saving(overlay: Overlay, module: ModuleType) -> None:
    """``tf.saved_model.save``."""
    patch(module, "save", lambda original: _model_written(overlay, original))


def divert_loading(overlay: Overlay, module: ModuleType) -> None:
    """``tf.saved_model.load``."""
    patch(module, "load_partial", lambda original: led(original, 0, lambda at: _seen_folder(overlay, at)))


def divert_summaries(overlay: Overlay, module: ModuleType) -> None:
    """TensorBoard's logs: each file of events has a name of its own."""
    patch(module, "create_file_writer_v2", lambda original: _logs(overlay, original, "events.out.tfevents"))


def divert_profiles(overlay: Overlay, module: ModuleType) -> None:
    """What TensorFlow's profiler writes below TensorBoard's folder, once it is stopped."""
    patch(module, "start", lambda original: _logs(overlay, original, os.path.join("plugins", "profile", "")))


def _logs(overlay: Overlay, original: Callable[..., Result], begin: str) -> Callable[..., Result]:
    """Nothing is overwritten by what is new in the folder; its paths below that begin so."""

    def call(logdir: object, *args: object, **kwargs: object) -> Result:
        name = gfile.local(overlay, logdir)
        if name is None or not overlay.session.here:
            return original(logdir, *args, **kwargs)
        place = place_for(overlay, name)
        with overlay.working():
            overlay.make_folders(os.path.dirname(os.path.join(place, begin)))
            overlay.created.will_make_all(os.path.join(place, begin))
        return original(logdir if place == overlay.absolute(logdir) else place, *args, **kwargs)

    return call


# writing


def _model_written(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def save(obj: object, export_dir: object, *args: object, **kwargs: object) -> Result:
        folder = gfile.local(overlay, export_dir)
        if folder is None:
            return original(obj, export_dir, *args, **kwargs)
        if not _is_led(overlay, folder, _OF_SAVED_MODELS):
            _note(overlay, folder, "")
            return original(obj, folder, *args, **kwargs)
        with _led(overlay, folder) as made:
            return original(obj, made, *args, **kwargs)

    return save


def _checkpoint_written(
    overlay: Overlay, original: Callable[..., object], module: ModuleType
) -> Callable[..., object]:
    def save(
        saver: object, file_prefix: object, checkpoint_number: int | None = None, *args: object, **kwargs: object
    ) -> object:
        name = gfile.local(overlay, file_prefix)
        if name is None or not isinstance(file_prefix, (str, os.PathLike)):
            return original(saver, file_prefix, checkpoint_number, *args, **kwargs)
        number = f"-{int(checkpoint_number)}" if checkpoint_number else ""
        folder, begin = os.path.split(name + number)
        if not _is_led(overlay, folder, (begin + ".",)):
            _note(overlay, folder, begin)
            return original(saver, file_prefix, checkpoint_number, *args, **kwargs)
        with _led(overlay, folder) as made:
            written = original(saver, os.path.join(made, begin), None, *args, **kwargs)
            wait: Callable[[], object] | None = getattr(written, "numpy", None)  # of a session's there is none
            if wait is not None:
                wait()
        prefix = os.fspath(file_prefix) + number
        return prefix if wait is None else module.constant_op.constant(prefix)

    return save


def _by_session(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """Meanwhile the session runs what writes or reads a checkpoint with another path."""

    def call(saver: Any, *args: object, **kwargs: object) -> Result:
        session: Any = args[0] if args else kwargs.get("sess")
        definition, run = saver.saver_def, getattr(session, "run", None)
        if definition is None or run is None or not hasattr(session, "__dict__"):
            return original(saver, *args, **kwargs)

        def running(fetches: object, feed_dict: object = None, *others: object, **options: object) -> object:
            name = definition.filename_tensor_name
            at = feed_dict.get(name) if isinstance(feed_dict, dict) else None

            def run_at(place: object) -> object:
                fed = {**feed_dict, name: place} if isinstance(feed_dict, dict) and at is not None else feed_dict
                return run(fetches, fed, *others, **options)

            if fetches == definition.restore_op_name:
                return run_at(_seen_prefix(overlay, at))
            if fetches == definition.save_tensor_name:
                return _saved_at(overlay, at, run_at)
            return run_at(at)

        with instead(session, "run", running):
            return original(saver, *args, **kwargs)

    return call


def _eagerly(overlay: Overlay, original: Callable[..., None]) -> Callable[..., None]:
    """Without a session a checkpoint is written or read while what would do so is built."""

    def _build_eager(saver: Any, checkpoint_path: object, build_save: bool, build_restore: bool) -> None:
        def build_at(place: object) -> object:
            original(saver, place, build_save, build_restore)
            return saver.saver_def

        if not build_save:
            build_at(_seen_prefix(overlay, checkpoint_path))
        elif _saved_at(overlay, checkpoint_path, build_at) is checkpoint_path:
            saver.saver_def.save_tensor_name = checkpoint_path

    return _build_eager


def _saved_at(overlay: Overlay, given: object, save_at: Callable[[object], object]) -> object:
    """What saving at a checkpoint's path gives: the path itself where it was led, and written somewhere else."""
    path = gfile.local(overlay, given)
    if path is None:
        return save_at(given)
    folder, begin = os.path.split(path)
    if not _is_led(overlay, folder, (begin + ".",)):
        _note(overlay, folder, begin)
        return save_at(given)
    with _led(overlay, folder) as made:
        save_at(os.path.join(made, begin))
    return given


def _note(overlay: Overlay, folder: str, begin: str) -> None:
    with overlay.working():
        overlay.make_folders(folder)
        overlay.created.will_make_all(os.path.join(folder, begin), model=True)


def _is_led(overlay: Overlay, folder: str, begins: tuple[str, ...]) -> bool:
    """Whether files of the user's whose names begin so are there, or the folder lies elsewhere."""
    with overlay.working():
        if overlay.is_active and overlay.view(folder) != folder:
            return True
        with contextlib.suppress(OSError):
            paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(begins)]
            return any(overlay.is_users(path, follow=False, everywhere=True) for path in paths)
    return False


@contextlib.contextmanager
def _led(overlay: Overlay, folder: str) -> Iterator[str]:
    """A folder whose files are moved, each to where it is led to, once they are written."""
    with tempfile.TemporaryDirectory(dir=overlay.folder) as made:
        yield made
        for here, _, names in os.walk(made):
            to = os.path.join(folder, os.path.relpath(here, made))
            os.makedirs(to, exist_ok=True)
            for name in names:
                place = overlay.saving(os.path.join(os.path.normpath(to), name))
                with overlay.working():
                    shutil.move(os.path.join(here, name), place)


# reading


def _seen_folder(overlay: Overlay, given: object) -> object:
    """Where what the script sees in the folder lies all together."""
    folder = gfile.local(overlay, given) if overlay.is_active else None
    if folder is None:
        return given
    paths = [os.path.join(here, name) for here, _, names in os.walk(folder) for name in names]
    return gfile.seen(overlay, given) if not paths else _together(overlay, given, folder, paths)


def _seen_prefix(overlay: Overlay, given: object) -> object:
    """Likewise, for the files whose paths begin so: of a checkpoint."""
    prefix = gfile.local(overlay, given) if overlay.is_active and isinstance(given, (str, os.PathLike)) else None
    if prefix is None:
        return given
    folder, begin = os.path.split(prefix)
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(begin + ".")]
    except OSError:
        paths = []
    return _together(overlay, given, prefix, paths)


def _together(overlay: Overlay, given: object, name: str, paths: list[str]) -> object:
    """``given``, of which the path is ``name``, or where links with the names of the paths lead to where these lie."""
    top = os.path.join(overlay.folder, _LINKS)
    with overlay.working():
        if is_in(name, top):
            return given
        places = {path: overlay.view(path) for path in paths}
        if paths and all(path == place for path, place in places.items()):
            return given if name == overlay.absolute(given) else name
        folder = os.path.dirname(name)
        old = os.path.join(top, folder.lstrip(os.sep))
        with contextlib.suppress(OSError):
            for stale in os.listdir(old):
                if stale == os.path.basename(name):
                    shutil.rmtree(os.path.join(old, stale), ignore_errors=True)
                elif stale.startswith(os.path.basename(name) + "."):
                    os.unlink(os.path.join(old, stale))
        for path, place in places.items():
            if place is not None:
                link = os.path.join(top, path.lstrip(os.sep))
                os.makedirs(os.path.dirname(link), exist_ok=True)
                os.symlink(place, link)
    return os.path.join(top, name.lstrip(os.sep))


DIVERTED = {
    "tensorflow.python.checkpoint.checkpoint": divert_checkpoint,
    "tensorflow.python.training.saver": divert_saver,
    "tensorflow.python.training.py_checkpoint_reader": divert_checkpoint_reader,
    "tensorflow.python.saved_model.save": divert_saving,
    "tensorflow.python.saved_model.load": divert_loading,
    "tensorflow.python.ops.summary_ops_v2": divert_summaries,
    "tensorflow.python.profiler.profiler_v2": divert_profiles,
    **gfile.DIVERTED,
    **data_files.DIVERTED,
}
"""TensorFlow's own modules, from which all names of its interface are taken, and what leads each."""
