"""A script to its real end: under plain Python, and with a profile under the real ``autotune run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.devices.cpu import cpu_device
from tuner.devices.software import software

# The same on a machine with a card, and without TensorFlow's remarks on the processor.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}


def applied(
    script: Path, config: Mapping[str, Any], arguments: tuple[str, ...] = (), *, strict: bool = True,
    as_written: Mapping[str, Any], framework: str = "torch", **knowledge: Any,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """``autotune run`` with a profile of this machine's CPU, as a study writes one; it ended with status 0.

    ``strict``: as the option of this name, under which a knob that isn't in effect ends the script.
    """
    document = {
        "device": asdict(cpu_device()), "config": config, "verdict": "improved",
        "speedup": {"ratio": 1.5, "low": 1.2, "high": 1.8}, "environment": dict(software()),
        "script": {"path": str(script), "module": "", "sha256": "", "argv": list(arguments)},
        "knowledge": {"framework": framework, "as_written": dict(as_written), **knowledge},
    }  # fmt: skip
    best = script.parent / "best.json"
    best.write_text(json.dumps({"schema": 1, "profiles": [document]}))
    command = [
        sys.executable, "-m", "tuner", "run", str(script), "--config", str(best), "--device", "cpu",
        *(["--strict"] if strict else []), "--", *arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=script.parent,
        env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done


def plainly(script: Path, *arguments: str) -> str:
    """What it prints by itself."""
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=200, check=False,
        cwd=script.parent, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
