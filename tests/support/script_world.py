"""A script that writes down its world as JSON: what it was started with, and what is patched where."""

from __future__ import annotations

TORCH = """
    import argparse, json, os, sys
    import multiprocessing, multiprocessing.util
    from shutil import rmtree
    from io import FileIO
    import numpy as np
    import torch
    import sklearn.datasets
    import yaml
    from PIL import Image
    from scipy import stats
    from sklearn.model_selection import train_test_split
    from torch import nn, save
    from torch.utils.data import DataLoader, Dataset
    from tqdm import tqdm

    def state_of_framework():
        return [torch.get_num_threads(), torch.get_num_interop_threads(), torch.cuda._is_in_bad_fork()]

    def drawn_by_framework():
        return {"torch": torch.rand(1).item(), "seed": torch.initial_seed()}
"""
"""What a script imports at its top, of all that may be loaded before it, as far as it is installed for the tests."""

KERAS = """
    import argparse, json, os, sys
    import multiprocessing, multiprocessing.util
    from shutil import copyfile
    from io import FileIO
    import numpy as np
    import tensorflow as tf
    import keras
    from keras import layers
    from keras.models import load_model, save_model
    from PIL import Image
    from sklearn.datasets import load_digits
    from tensorflow.io import read_file, TFRecordWriter
    from tensorflow.python.eager import context
    from tensorflow.saved_model import load, save

    def state_of_framework():
        made = context.context_safe()
        return {
            "context": [made is None or made._initialized, made is not None and made._physical_devices],
            "keras": [keras.backend.backend(), keras.config.floatx(), keras.config.dtype_policy().name,
                      keras.config.image_data_format(), keras.config.epsilon()],
            "global": sorted(vars(keras.src.backend.common.global_state.GLOBAL_STATE_TRACKER)),
            "names": sorted(dir(tf)) + sorted(dir(keras)) + sorted(dir(tf.keras)),
        }

    def drawn_by_framework():
        layer = layers.Dense(3)
        layer.build((None, 3))
        return {
            "tensorflow": float(tf.random.uniform(())), "keras": float(keras.random.uniform(())),
            "shuffled": [int(n) for n in tf.data.Dataset.range(40).shuffle(40)],
            "weights": layer.kernel.numpy().tolist(), "seed": keras.random.SeedGenerator().state.numpy().tolist(),
            "state": tf.random.Generator.from_non_deterministic_state().state.numpy().tolist(),
        }
"""
"""The same with TensorFlow and Keras."""

JAX = """
    import argparse, json, os, sys
    import multiprocessing, multiprocessing.util
    from shutil import copytree
    from io import FileIO
    from absl import app, flags, logging as told
    import jax
    import jax.numpy as jnp
    import jax.scipy as jsp
    import numpy as np
    from jax import grad, jit, lax, random, value_and_grad, vmap
    from jax.example_libraries import optimizers, stax
    from jax.experimental import pallas, shard_map
    from jax.tree_util import tree_map
    from sklearn.datasets import load_digits

    def state_of_framework():
        from jax._src import xla_bridge
        return {
            "clients": sorted(xla_bridge._backends), "settings": sorted(map(str, jax.config.values.items())),
            "names": sorted(dir(jax)) + sorted(dir(jnp)) + sorted(dir(jax.lax)),
        }

    def drawn_by_framework():
        return {}
"""
"""The same with JAX, whose keys are the script's own, and nothing is drawn by chance."""

WORLD = """
    import ctypes, functools, gc, hashlib, inspect, logging, re, resource, signal, tempfile, threading, time, types
    import warnings
    warnings.simplefilter("ignore", append=True)

    def is_patched(value):
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        try:
            own = type.__dict__["__dict__"].__get__(value) if isinstance(value, type) else value.__dict__
            return "__autotune_original__" in own
        except Exception:
            return False

    found, seen = [], set()

    def look(where, value, depth):
        if is_patched(value):
            found.append(re.sub(r"\\d{6,}", "N", where))
            return
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(value, types.FunctionType) and id(value) not in seen and depth < 5:
            seen.add(id(value))
            entries = [*enumerate(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items()]
            for cell in value.__closure__ or ():
                try:
                    entries.append(("cell", cell.cell_contents))
                except ValueError:
                    pass
        elif isinstance(value, functools.partial):
            entries = [("partial", value.func)]
        elif isinstance(value, type) and id(value) not in seen and depth < 4:
            seen.add(id(value))
            entries = [*vars(value).items(), *(("base", base) for base in value.__mro__[1:] if is_patched(base))]
        elif type(value) in (list, tuple) and len(value) < 200 and depth < 4:
            entries = list(enumerate(value))
        elif type(value) is dict and len(value) < 500 and depth < 4:
            entries = list(value.items())
        elif type(value).__module__ not in ("builtins", "typing") and id(value) not in seen and depth < 3:
            seen.add(id(value))
            try:
                entries = list(object.__getattribute__(value, "__dict__").items())
            except AttributeError:
                return
        else:
            return
        for name, entry in entries:
            look(f"{where}.{name!s:.60}", entry, depth + 1)

    def patched_places():
        for name, module in sorted(sys.modules.items()):
            if name.startswith("_autotune_child") or name == "__main__" or not isinstance(module, types.ModuleType):
                continue
            for attribute, value in sorted(vars(module).items(), key=lambda entry: str(entry[0])):
                if not isinstance(value, type) or value.__module__ == name or is_patched(value):
                    look(f"{name}.{attribute}", value, 0)
        return sorted(found)

    def descriptors():
        places = []
        for number in os.listdir("/proc/self/fd"):
            try:
                places.append(re.sub(r"[^a-z]", "", os.readlink(f"/proc/self/fd/{number}").rpartition("/")[2]))
            except OSError:
                pass
        return sorted(places)

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    current = multiprocessing.current_process()
    tracker = sys.modules.get("multiprocessing.resource_tracker")
    known = [(s.name, re.sub(" at .*", "", str(signal.getsignal(s)))) for s in signal.Signals]
    world = {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags),
        "xoptions": dict(sys._xoptions), "main": sorted(sys.modules["__main__"].__dict__),
        "main_is_me": sys.modules["__main__"].__dict__ is globals(), "file": __file__, "cwd": os.getcwd(),
        "modules": sorted(
            set(sys.modules) - {f"_autotune_child.{name}" for name in ("fork_server", "hooked", "open_libraries")}
        ),
        "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "path_hooks": len(sys.path_hooks), "environment": list(os.environ.items()),
        "getenv": [(name, (getenv(name.encode()) or b"").decode()) for name in os.environ],
        "threads": [thread.name for thread in threading.enumerate()],
        "main_thread": [threading.main_thread().ident == threading.get_ident(),
                        threading.main_thread().native_id == threading.get_native_id()],
        "signals": known, "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "warnings": [list(map(str, entry)) for entry in warnings.filters],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()],
        "umask": [os.umask(0o22), os.umask(0o22)], "nice": os.nice(0), "cores": sorted(os.sched_getaffinity(0)),
        "limits": [(n, resource.getrlimit(getattr(resource, n))) for n in dir(resource) if n.startswith("RLIMIT")],
        "descriptors": descriptors(), "places": [os.readlink(f"/proc/self/fd/{n}") for n in range(3)],
        "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.name, s.mode, type(s.buffer).__name__)
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "command": open("/proc/self/cmdline").read(), "program": os.readlink("/proc/self/exe"),
        "guard": open(f"/proc/{os.getppid()}/cmdline").read().count("guard.py"),
        "oom": open("/proc/self/oom_score_adj").read(), "session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "framework": state_of_framework(), "generator": np.random.get_state()[2:],
        "multiprocessing": [multiprocessing.get_start_method(), multiprocessing.parent_process() is None, current.name,
                            len(multiprocessing.active_children()), tracker and tracker._resource_tracker._fd,
                            len(multiprocessing.util._afterfork_registry),
                            len(multiprocessing.util._finalizer_registry)],
        "depth": len(inspect.stack()), "recursion": sys.getrecursionlimit(), "temporary": tempfile.gettempdir(),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "logging": [logging.root.level, len(logging.root.handlers), sorted(logging.root.manager.loggerDict)],
        "recent": time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) > 0 and time.process_time() < 300,
        "patched": patched_places(),
        "called": [f"{f.__module__}.{f.__qualname__}" for f in (os.replace, os.remove, os.listdir, os.stat, open)],
    }
    chance = {
        "random": __import__("random").random(), "numpy": np.random.rand(),
        "generator": np.random.default_rng().random(), "authkey": current.authkey.hex(),
        "started": logging._startTime, **drawn_by_framework(),
    }
    with open(sys.argv[1], "w") as file:
        json.dump({"world": world, "chance": chance}, file, default=str)
"""
