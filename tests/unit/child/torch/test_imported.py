"""Which variables a worker that imports the script again would have otherwise than the script has them."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tuner.child.torch.imported import _looked_into, set_since
from tuner.child.torch.starting import _why_unpicklable

DATA = """
class Data:
    scale = 1
    def __getitem__(self, number):
        return number, CONFIG, settings.SCALE
"""
LEFT = [
    'CONFIG = {"scale": 1}',
    "CONFIG = 3",
    "CONFIG: int = 3",
    "CONFIG = dict(scale=1)",
    "CONFIG = 1 if True else 2",
    "CONFIG = np.random.default_rng(0).normal(size=3)",
    "def main():\n    CONFIG = 5\nCONFIG = 3",
    "from math import pi as CONFIG",
    "import logging\nCONFIG = logging.getLogger('data')\ndef main():\n    CONFIG.setLevel(logging.INFO)",
]
SET = [
    'CONFIG = {"scale": 1}\ndef main():\n    CONFIG["scale"] = 5',
    'CONFIG = {"scale": 1}\ndef main(of):\n    of["scale"] = 5\n',
    "CONFIG = 3\ndef main():\n    global CONFIG\n    CONFIG = 5",
    'if __name__ == "__main__":\n    CONFIG = 3',
    'CONFIG = 3\nif __name__ == "__main__":\n    CONFIG = 5',
    "CONFIG = dict(scale=1)\ndef main():\n    CONFIG.update(scale=5)",
    "import types\nCONFIG = types.SimpleNamespace(scale=1)\ndef main():\n    setattr(CONFIG, 'scale', 5)",
    "CONFIG = np.random.randn(3)",
    "CONFIG = time.time()",
]


def run_as_script(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file as ``__main__``, which has run; nothing is known of any file before."""
    linecache.clearcache()
    _looked_into.cache_clear()
    script = ModuleType("__main__")
    script.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(path.read_text(), str(path), "exec"), vars(script))
    return script


def set_of(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """Of a script of this text, whose ``main`` has run."""
    text = f"import time\nimport numpy as np\nimport settings\n{text}\n{DATA}"
    if "def main(" in text:
        text += 'if __name__ == "__main__":\n    main(' + ("CONFIG" if "main(of)" in text else "") + ")\n"
    path = folder / "train.py"
    path.write_text(text)
    (folder / "settings.py").write_text("SCALE = 1\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "settings", raising=False)
    script = run_as_script(path, monkeypatch)
    return set_since({"dataset": script.Data()})


@pytest.mark.parametrize("text", LEFT)
def test_what_an_import_leaves_as_it_is(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_of(tmp_path, monkeypatch, text) == ""


@pytest.mark.parametrize("text", SET)
def test_what_the_training_has_set_since(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_of(tmp_path, monkeypatch, text) == "CONFIG"


def test_what_it_has_set_of_a_class_or_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set_of(tmp_path, monkeypatch, "CONFIG = 3\ndef main():\n    Data.scale = 5") == "what Data holds"
    assert set_of(tmp_path, monkeypatch, "CONFIG = 3\ndef main():\n    settings.SCALE = 5") == "what settings holds"
    assert set_of(tmp_path, monkeypatch, "CONFIG = 3\ndef main():\n    np.SCALE = 5\n    del np.SCALE") == ""


SETTINGS = """
import types
OPTIONS, SIZES, WIDTH = types.SimpleNamespace(scale=1), {}, 4
class Kept:
    scale = 1
def use(scale):
    global WIDTH
    SIZES["scale"] = Kept.scale = WIDTH = scale
"""
USE = """
import settings
def use(scale):
    settings.WIDTH = scale
"""
READER = """
import settings
from settings import OPTIONS, SIZES, WIDTH, Kept
class Data:
    def __getitem__(self, number):
        return number * READS
"""


@pytest.mark.parametrize(
    ("reads", "sets", "name"),
    [
        ("OPTIONS.scale", "settings.OPTIONS.scale = 5", "what settings holds"),
        ("OPTIONS.scale", "from settings import OPTIONS as own\n    own.scale = 5", "OPTIONS"),
        ("SIZES['scale']", "settings.use(5)", "SIZES"),
        ("Kept.scale", "settings.use(5)", "Kept"),
        ("OPTIONS.scale", "settings.use(5)", ""),
        ("WIDTH", "settings.use(5)", ""),
        ("settings.WIDTH", "settings.use(5)", "settings"),
        ("settings.WIDTH", "user.use(5)", "settings"),
        ("settings.SIZES.get('width', 1)", "user.use(5)", "settings"),
        ("settings.types.MappingProxyType({'scale': 1})['scale']", "settings.use(5)", ""),
    ],
)
def test_what_it_has_set_of_what_another_module_of_its_data_has_imported(
    reads: str, sets: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts keep settings in a module that their data import: each worker read them as an import leaves them."""
    for module, text in (("settings", SETTINGS), ("user", USE), ("reader", READER.replace("READS", reads))):
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "train.py"
    home = "user" if sets.startswith("user") else "settings"
    path.write_text(f'import reader, {home}\ndef main():\n    {sets}\nif __name__ == "__main__":\n    main()\n')
    script = run_as_script(path, monkeypatch)
    assert set_since({"dataset": script.reader.Data()}) == name


def test_no_library_is_asked_for_what_the_script_never_took_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that imports its parts once they are asked for would do so here: it takes seconds, or fails."""

    def imports(name: str) -> None:
        raise RuntimeError(f"Failed to import {name}")

    lazy = ModuleType("lazily")
    vars(lazy)["__getattr__"] = imports
    monkeypatch.setitem(sys.modules, "lazily", lazy)
    text = "def main(of):\n    of['scale'] = 5\ndef export():\n    from lazily import Exporter\nCONFIG = {'scale': 1}"
    assert set_of(tmp_path, monkeypatch, text) == "CONFIG"
    assert set_of(tmp_path, monkeypatch, text.replace("of['scale'] = 5", "pass")) == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ""),
        ("if True:\n    class Data: pass\n", ""),
        ('if __name__ == "__main__":\n    class Data: pass\n', "an import of the script doesn't make Data"),
        ('if __name__ == "__main__":\n    class Other(Data): pass\n    Data = Other\n', "doesn't make Other"),
    ],
)
def test_a_class_that_an_import_does_not_make(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker would end with "can't get attribute" in each config that has one."""
    path = tmp_path / "train.py"
    path.write_text(text if "(" not in text and text else f"class Data: pass\n{text}")
    script = run_as_script(path, monkeypatch)
    told = _why_unpicklable({"dataset": script.Data()})
    assert reason in told and bool(reason) == bool(told)
