"""Forks of ``run_child`` make up for hooks as autotune's own do, though each but the first looks at few places."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.children import Children, Server

TELLS = """
    import numpy
    import gc, json, os, sys
    from numpy.lib._datasource import _file_openers

    print(os.path.exists(sys.argv[1]))

    def replaces(value):
        return "__autotune_original__" in getattr(value, "__dict__", {})

    found = {}
    for name, module in list(sys.modules.items()):
        if type(module) is type(sys) and not name.startswith("_autotune_child"):
            for key, value in list(vars(module).items()):
                inner = vars(value) if isinstance(value, type) else value if type(value) is dict else {}
                inner = [each for each, held in list(inner.items()) if replaces(getattr(held, "__func__", held))]
                if replaces(value) or inner:
                    found[f"{name}.{key}"] = list(map(str, inner))
    openers = _file_openers._file_openers
    found["the openers of an object"] = [str(name) for name, value in openers.items() if replaces(value)]
    defaults = [
        each.__qualname__ for each in gc.get_objects() if type(each) is type(replaces)
        and not str(each.__module__).startswith("_autotune_child") and any(map(replaces, each.__defaults__ or ()))
    ]
    print(json.dumps([found, sorted(defaults)]))
"""


class OfNumpy(Children):
    """Its one server has imported NumPy, which takes a tenth of a second, and holds ``open`` in an object."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda name: folder, fresh=False)
        self.folder = folder

    def _server_for(self, script: Path, environment: Mapping[str, str]) -> Server:
        if not self._servers:
            self._servers["numpy"] = Server(("numpy",), {**os.environ, "OMP_NUM_THREADS": "1"}, self.folder)
        return self._servers["numpy"]


@pytest.fixture
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfNumpy]:
    made = OfNumpy(tmp_path_factory.mktemp("forks-numpy"))
    yield made
    made.close()


def test_a_fork_that_looks_at_few_places_replaces_what_one_does_that_looks_at_all(
    write_script: Callable[..., Path], run_child: Callable[..., Any], children: OfNumpy
) -> None:
    told = []
    for looks_everywhere in (True, False):
        run = run_child(write_script(TELLS), argv=(str(children.folder / "learned.json"),))
        assert run.returncode == 0, run.output
        looked, found = run.output.splitlines()
        assert looked == str(looks_everywhere)
        told.append(found)
    assert told[0] == told[1]
    assert '"the openers of an object": ["None"' in told[0] and '"bz2._builtin_open": []' in told[0]
