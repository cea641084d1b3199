"""Signals in a process of its own: the first one asks to stop, a second Ctrl-C interrupts at once."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tuner.cli import signals

# By its path: importing the command line as a whole would take most of the tests' time.
PROGRAM = """
import os, runpy, signal, sys, threading, time
stopping_on_signals = runpy.run_path(sys.argv[3])["stopping_on_signals"]
stop = threading.Event()
before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
def say(text):
    os.write(int(sys.argv[1]), text.encode() + b"\\n")
try:
    with stopping_on_signals(stop, lambda: say("stopping")):
        say("ready")
        while not stop.wait(0.01):
            pass
        say("stopped")
        time.sleep(float(sys.argv[2]))
        print("to the terminal", flush=True)
    say("over")
except KeyboardInterrupt:
    say("interrupted")
after = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
say("restored" if before == after else "not restored")
"""


@contextmanager
def _program(
    seconds: float, terminal: int | None = None, *, under_nohup: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], Iterator[str]]]:
    """The program, past its start, and the lines that it says on a pipe of its own."""
    reader, writer = os.pipe()
    output = subprocess.DEVNULL if terminal is None else terminal
    # What is started inherits it; these tests may run under nohup themselves.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if under_nohup else signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(writer), str(seconds), signals.__file__],
        pass_fds=[writer], stdin=output, stdout=output, stderr=output,
    )  # fmt: skip
    signal.signal(signal.SIGHUP, before)
    os.close(writer)
    with os.fdopen(reader) as stream:
        lines = (line.rstrip("\n") for line in stream)
        try:
            assert next(lines) == "ready"
            yield process, lines
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_to_stop(number: signal.Signals) -> None:
    with _program(0.0) as (process, lines):
        process.send_signal(number)
        assert list(lines) == ["stopping", "stopped", "over", "restored"]
        assert process.wait(10) == 0


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_ctrl_c_after_that_interrupts(first: signal.Signals) -> None:
    with _program(60.0) as (process, lines):
        process.send_signal(first)
        assert [next(lines), next(lines)] == ["stopping", "stopped"]
        process.send_signal(signal.SIGINT)
        assert list(lines) == ["interrupted", "restored"]


def test_a_second_gentle_signal_changes_nothing() -> None:
    with _program(0.5) as (process, lines):
        process.send_signal(signal.SIGINT)
        assert [next(lines), next(lines)] == ["stopping", "stopped"]
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        assert list(lines) == ["over", "restored"]


def test_a_closed_terminal_does_not_end_the_study() -> None:
    controller, terminal = pty.openpty()
    with _program(0.3, terminal) as (process, lines):
        os.close(terminal)
        os.close(controller)  # from here on, what is written to the terminal fails
        process.send_signal(signal.SIGHUP)
        assert list(lines) == ["stopping", "stopped", "over", "restored"]
        assert process.wait(10) == 0


def test_a_study_that_nohup_started_outlives_its_terminal() -> None:
    """An overnight study ended as its terminal was closed, though its user had asked for just that not to be."""
    with _program(0.0, under_nohup=True) as (process, lines):
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGTERM)
        assert [next(lines) for _ in range(4)] == ["stopping", "stopped", "over", "restored"]


def test_a_ctrl_c_while_the_command_is_loaded_is_told_as_any() -> None:
    """Its imports take a third of a second, and showed where in a traceback."""
    program = """
        import sys
        class Pressed:
            @staticmethod
            def find_spec(name, *rest):
                if name == "tuner.cli":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Pressed)
        from tuner.__main__ import main
        main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stderr, ended.returncode) == ("interrupted\n", -signal.SIGINT)


def test_the_command_is_what_that_holds_for() -> None:
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["project"]["scripts"] == {"autotune": "tuner.__main__:main"}
