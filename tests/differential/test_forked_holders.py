"""A fork that looks where its server has found something replaces what one replaces that looks everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.children import CHILD, ONE_THREAD

FORKS = """
import gc, importlib.util, json, os, sys

spec = importlib.util.spec_from_file_location("launched_child", sys.argv[1])
launched = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launched)
launched._mount()
from _autotune_child import execute, fork_server, holders, patches, preloaded
from _autotune_child.recorder import Recorder
from _autotune_child.records import ChildRequest
from _autotune_child.session import Session

imports = [(1, name, []) for name in sys.argv[2:]]
refusal = fork_server._load(os.path.abspath("train.py"), imports, [])
assert not refusal, refusal
fork_server.find_holders(ChildRequest(seed=0))
was_there = gc.get_objects()  # and stays: what comes later has another address
ids = {id(each): each for each in was_there}


def describe(each):
    "A dictionary by what refers to it: that of a module, or of a class."
    if type(each) is dict:
        if "__name__" in each:
            return f"dictionary of {each['__name__']}"
        return f"dictionary {sorted(map(str, each))[:5]}"
    return f"{type(each).__name__} {getattr(each, '__qualname__', '')}"


def who_refers_to(values):
    "The objects that were there before; also those whose defaults, a tuple, are new."
    found = gc.get_referrers(*values)
    new = [each for each in found if type(each) is tuple and id(each) not in ids]
    found += gc.get_referrers(*new) if new else []
    return sorted({f"{describe(ids[id(each)])} at {id(each)}" for each in found if ids.get(id(each)) is each})


def names_of(values):
    known = {id(each) for each in values}
    modules = [(key, each) for key, each in list(sys.modules.items()) if type(each) is type(sys)]
    return sorted(f"{key}.{name}" for key, each in modules for name, value in vars(each).items() if id(value) in known)


def tell(looks_everywhere, file):
    here, looks = preloaded.here.holders, []
    scope = holders.Holders.scope
    if looks_everywhere:
        scope = lambda self, originals: holders.everywhere()
    holders.Holders.scope = lambda self, originals: looks.append(scope(self, originals)) or looks[-1]
    stages = execute.install_hooks(Session(ChildRequest(seed=0), Recorder(None)))
    patches.give_to_others(stages, here)
    ledger = [(owner, name, original) for owner, name, original in patches._ledger if type(owner) is type(sys)]
    replacements = [vars(owner)[name] for owner, name, _ in ledger]
    originals = [original for _, _, original in ledger]
    told = {
        "looked": [len(look.modules) for look in looks],
        "all": [look.referrers is gc.get_referrers for look in looks],
        "replaced": names_of(replacements), "kept": names_of(originals),
        "hold": who_refers_to(replacements), "hold what was": who_refers_to(originals),
    }
    with open(file, "wb", buffering=0) as stream:
        stream.write(json.dumps(told).encode())


leave = os._exit
for name, looks_everywhere in (("everywhere.json", True), ("found.json", False)):
    file = os.path.abspath(name)
    child = os.fork()
    if not child:
        try:
            tell(looks_everywhere, file)
        except BaseException:
            import traceback
            traceback.print_exc()
        leave(0)
    os.waitpid(child, 0)
"""
BEYOND = pytest.mark.slow  # what of PyTorch is replaced in a fork: test_forked_world.py


@pytest.mark.parametrize(
    "imports",
    [
        ["numpy", "numpy.random", "zipfile", "bz2", "tokenize"],
        pytest.param(["torch", "torch._dynamo"], marks=BEYOND),
        pytest.param(["torch", "lightning", "transformers", "sklearn", "PIL.Image"], marks=BEYOND),
        pytest.param(["keras"], marks=BEYOND),
        pytest.param(["tensorflow", "pyarrow", "cv2", "lmdb"], marks=BEYOND),
        pytest.param(["jax", "jax.numpy"], marks=BEYOND),
    ],
    ids="-".join,
)
def test_a_fork_replaces_what_it_would_by_a_look_everywhere(imports: list[str], tmp_path: Path) -> None:
    assert all(find_spec(name) for name in imports)
    command = [sys.executable, "-c", FORKS, str(CHILD), *imports]
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (tmp_path / "found.json").exists(), done.stdout + done.stderr
    everywhere, found = (_read(tmp_path / name) for name in ("everywhere.json", "found.json"))
    assert all(everywhere.pop("all")) and not any(found.pop("all"))
    looked = everywhere.pop("looked"), found.pop("looked")
    assert max(looked[1]) < min(looked[0]) / 3, "it looks at few modules"
    assert found == everywhere
    assert {"builtins.open", "bz2._builtin_open", "os.stat"} <= {*found["replaced"]}
    assert len(found["hold"]) > 10


def _read(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(path.read_text())
    return told
