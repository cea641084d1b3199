"""Launched by path. Mounts this folder under a private name, then runs the user's script.

As a fork server it runs none, and does so in each process that it forks.
"""

from __future__ import annotations

import sys


def _mount() -> None:
    """Makes this folder importable as ``_autotune_child`` without leaving it on ``sys.path``."""
    import importlib.util
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)  # this folder; under PYTHONSAFEPATH it isn't there, and what comes first is the user's
    spec = importlib.util.spec_from_file_location(
        "_autotune_child", os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_autotune_child"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _mount()
    from importlib import import_module
    from os import environ

    if "AUTOTUNE_SERVER_FD" in environ:  # wire.SERVER_ENV
        import_module("_autotune_child.execute")
        import_module("_autotune_child.fork_server").main()  # returns in forks only
    import_module("_autotune_child.execute").main()
