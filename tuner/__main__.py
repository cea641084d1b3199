"""The command ``autotune``, and ``python -m tuner`` where that isn't on the path."""

from __future__ import annotations

import sys
from contextlib import suppress


def main() -> int:
    """Loads the command line and runs it, and gives its exit status.

    Raises ``KeyboardInterrupt``, which has been told: loading takes a third of a second, and Ctrl-C may come in it.
    """
    try:
        from tuner import cli
    except KeyboardInterrupt:
        with suppress(OSError):
            print("interrupted", file=sys.stderr)
        sys.excepthook = lambda *raised: None
        raise  # Python ends by the signal then, as it does where the command line is interrupted
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
