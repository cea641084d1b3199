"""``autotune verify``: a proven config is measured again, and the exit status says what came of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.command import WITH_SHORT_WINDOWS, Place, place

from tuner.devices.cpu import cpu_device
from tuner.devices.host import usable_cores
from tuner.devices.software import software
from tuner.errors import ExitCode

__all__ = ["place"]
ARGUMENTS = ("--", "{pace=4|2}")
TRAIN = """
    import sys, time
    import tuner
    pace = int(sys.argv[1])
    for step in range(100_000):
        time.sleep(pace / 1000)
        tuner.report(step=step + 1, samples=8 * (step + 1))
"""
FAILS = TRAIN.replace("for step", "assert pace == 4, f'no pace of {pace}'\n    for step")


def profile(folder: Path, config: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> None:
    """A best.json as a study of that script writes it."""
    document = {
        "device": asdict(cpu_device()), "cores": usable_cores(), "config": dict(config),
        "objective": "throughput (samples/s)", "verdict": "improved" if config else "keep-baseline",
        "speedup": {"ratio": 1.9, "low": 1.8, "high": 2.0} if config else None, "environment": dict(software()),
        "limits": {"effective_batch": "both", "max_loss_increase": None, "min_sample_efficiency": None},
        "script": {"path": "train.py", "module": "", "sha256": "", "argv": [ARGUMENTS[1]]},
        "knowledge": {"placeholders": ["pace"]},
        **(changes or {}),
    }  # fmt: skip
    (folder / "best.json").write_text(json.dumps({"schema": 1, "profiles": [document]}))


def verify(place: Place, *options: str) -> Any:
    """What the command came to."""
    return place.run("verify", "--config", "best.json", "train.py", "--device", "cpu", *options, *ARGUMENTS)


def test_a_config_that_works_no_more_fails_and_what_was_measured_is_kept(place: Place) -> None:
    place.write(FAILS, "train.py")
    profile(place.folder, {"pace": 2})
    done = verify(place, "--study", "kept")
    assert done.returncode == ExitCode.NOT_VERIFIED, (done.stdout, done.stderr)
    said = done.stdout.splitlines()[-3:]
    assert said[0] == f"not true any more on cpu ({cpu_device().name}): pace=2"
    assert said[1].startswith("  trial 1 ended as ") and "no pace of 2" in said[1]
    assert said[2] == "  what was measured: autotune trials kept"
    assert json.loads(place.run("trials", "kept", "--json").stdout)[1]["config"] == {"pace": 2}


def test_where_nothing_was_proven_there_is_nothing_to_verify(place: Place) -> None:
    place.write(TRAIN, "train.py")
    profile(place.folder, {})
    done = verify(place)
    assert done.returncode == ExitCode.OK and done.stdout.startswith("nothing to verify: best.json says to run")
    asked = verify(place, "--min-speedup", "1.5")
    assert asked.returncode == ExitCode.USAGE and "nothing in it is 1.5x as fast [profile]" in asked.stderr


def test_what_is_no_earlier_verification_is_not_set_aside(place: Place) -> None:
    """Neither the study of the profile, nor another one, nor a folder with something else."""
    place.write(TRAIN, "train.py")
    for name, files in (("found", ["study.db"]), ("other", ["study.db", "best.json"]), ("corpus", ["a.txt"])):
        (place.folder / name).mkdir()
        for file in files:
            (place.folder / name / file).touch()
    profile(place.folder / "found", {"pace": 2})
    (place.folder / "found" / "best.json").rename(place.folder / "found" / "all.json")
    for name in ("found", "other", "corpus"):
        done = place.run("verify", "--config", "found/all.json", "train.py", "--study", name, *ARGUMENTS)
        assert done.returncode == ExitCode.USAGE, (done.stdout, done.stderr)
        assert done.stderr.startswith(f"error: --study {name} holds something else than an earlier verification")
    assert sorted(path.name for path in place.folder.iterdir() if path.is_dir()) == ["corpus", "found", "other"]


def test_a_script_that_fails_as_written_names_the_folder_with_what_was_run(
    place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("own")))
    place.write("raise SystemExit('no such corpus')", "train.py")
    profile(place.folder, {"pace": 2})
    done = verify(place)
    assert done.returncode == ExitCode.USER_SCRIPT and "no such corpus" in done.stderr
    [folder] = re.findall(r"^autotune: what was run: (\S*autotune-verify-\S+)$", done.stderr, re.MULTILINE)
    assert (Path(folder) / "trials" / "0000" / "log.txt").exists()


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"objective": "latency (s)"}, "best.json was proven by latency (s), and this would be t", "--objective"),
        ({"limits": {"max_loss_increase": "much"}}, "best.json: limits: max_loss_increase = 'much'", ""),
        ({"config": {"pacer": 2}}, "best.json: 'pacer' is no knob", ""),
        ({"ranks": 1000}, "best.json was proven in 1000 ranks, and there are fewer cores here", "where each rank"),
    ],
)  # fmt: skip
def test_what_cannot_be_verified_is_refused_before_anything_runs(
    place: Place, changes: dict[str, Any], message: str, hint: str
) -> None:
    place.write(TRAIN, "train.py")
    profile(place.folder, {"pace": 2}, changes)
    done = verify(place, "--study", "kept")
    assert done.returncode == ExitCode.USAGE and done.stderr.startswith(f"error: {message}"), done.stderr
    assert hint in done.stderr.splitlines()[1] and not (place.folder / "kept").exists()


@pytest.mark.slow  # two studies of a minute
@pytest.mark.timed
@pytest.mark.timeout(400)
def test_what_holds_is_verified_and_what_was_lost_is_not(
    place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof is taken twice: of the script that was proven, and of one that is as fast without the config."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("own")))  # what isn't verified leaves its folder
    place = Place(place.folder, WITH_SHORT_WINDOWS)
    place.write(TRAIN, "train.py")
    profile(place.folder, {"pace": 2})
    held = verify(place, "--min-speedup", "1.5", "--budget", "2m")
    assert held.returncode == ExitCode.OK, held.stdout
    told = r"^  1\.[89]\dx the speed, 95% interval .*, where 1.5x is asked for; when it was"
    assert re.search(told, held.stdout, re.MULTILINE)
    [folder] = re.findall(r"in (\S*autotune-verify-\S+)", held.stdout)
    assert not Path(folder).exists(), "what is verified leaves nothing"
    place.write(TRAIN.replace("int(sys.argv[1])", "4"), "train.py")
    lost = verify(place, "--budget", "2m")
    assert lost.returncode in (ExitCode.NOT_VERIFIED, ExitCode.CANNOT_TELL), lost.stdout
    assert lost.returncode == ExitCode.NOT_VERIFIED or "disturbed" in lost.stdout
