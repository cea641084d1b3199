"""Every error that a user can meet: a slug, an exit code, what was wrong, and a hint that mends it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of the command line, documented in tuner/cli/README.md."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    USER_SCRIPT = 3
    DEVICE = 4
    STUDY = 5
    STORAGE = 6
    NOT_APPLIED = 7
    NOT_TRAINED = 8
    NOT_VERIFIED = 9
    CANNOT_TELL = 10
    INTERRUPTED = 130


class AutotuneError(Exception):
    """Base of all errors that are shown to a user as text instead of a traceback.

    ``slug`` names the kind of error for programs, and in tuner/cli/README.md; ``hint`` says what mends it.
    """

    slug = "error"
    exit_code = ExitCode.INTERNAL

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AutotuneError):
    """A command line or a study.toml that can't be taken as it stands."""

    slug = "usage"
    exit_code = ExitCode.USAGE


class UnknownKnobError(UsageError):
    """A knob that no part of the search space declares."""

    slug = "unknown-knob"


class ScriptNotFoundError(UsageError):
    """The script or module that should be tuned doesn't exist."""

    slug = "script-not-found"


class SpaceError(UsageError):
    """A search space that is malformed or can't be loaded."""

    slug = "search-space"


class ObjectiveError(UsageError):
    """An objective that is malformed or can't be loaded."""

    slug = "objective"


class ProfileError(UsageError):
    """A best.json that can't be read, or that holds no profile for the present device."""

    slug = "profile"


class GridError(UsageError):
    """A recorded grid that can't be read, or that is asked for what it doesn't hold."""

    slug = "grid"


class UntrustedError(UsageError):
    """A file that others may have written would choose what is run or loaded, and nobody has vouched for it."""

    slug = "untrusted"


class DeviceError(AutotuneError):
    """The device that was asked for isn't there, or something else uses it."""

    slug = "device"
    exit_code = ExitCode.DEVICE


class DeviceBusyError(DeviceError):
    """Another study holds the device."""

    slug = "device-busy"


class UserScriptError(AutotuneError):
    """The user's script fails by itself; ``traceback_text`` is theirs, unchanged."""

    slug = "script-failed"
    exit_code = ExitCode.USER_SCRIPT

    def __init__(self, message: str, hint: str = "", traceback_text: str = "") -> None:
        super().__init__(message, hint)
        self.traceback_text = traceback_text


class OwnFaultError(AutotuneError):
    """The script runs, and autotune's instruments break it; ``traceback_text`` says where."""

    slug = "own-fault"

    def __init__(self, message: str, hint: str = "", traceback_text: str = "") -> None:
        super().__init__(message, hint)
        self.traceback_text = traceback_text


class UntunableError(AutotuneError):
    """The script runs, but nothing in it can be measured or tuned; the message says why in one line."""

    slug = "untunable"
    exit_code = ExitCode.USER_SCRIPT


class StudyMismatchError(AutotuneError):
    """A study's folder belongs to a different script, arguments, device or software."""

    slug = "study-mismatch"
    exit_code = ExitCode.STUDY


class StorageError(AutotuneError):
    """The study's folder or database can't be read or written."""

    slug = "storage"
    exit_code = ExitCode.STORAGE


class InfrastructureError(AutotuneError):
    """A fault of our own or of the machine, not of the script and not of a config."""

    slug = "infrastructure"
