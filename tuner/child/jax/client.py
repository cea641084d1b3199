"""JAX's client for the processor: how many threads it computes with, and whether the script runs ahead of it.

Both are decided when the client is made, which JAX does with its first operation; so is whether XLA keeps apart what
"checkpointing" computes again.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .. import thread_names
from ..applied import Effect
from ..evidence import Finding
from ..patches import patch
from ..records import Evidence
from ..session import Session
from . import FRAMEWORK, is_below
from .checkpointing import KNOB
from .types import Call

THREADS, ASYNC = "threads", "async_dispatch"
KNOBS = (THREADS, ASYNC)
VARIABLES = ("PJRT_NPROC", "NPROC")
"""How many processors there are, in the words of XLA's library."""
FLAGS, KEEPS_BARRIERS = "XLA_FLAGS", "--xla_disable_hlo_passes=cse_barrier_expander"
"""XLA takes barriers away on a processor, and merges what is computed twice. Other such flags stay in effect."""
POOL = "tf_XLAEigen"
"""The name of the threads in which the client computes, as XLA gives it."""
ONE_THREAD = re.compile(r"--xla_cpu_multi_thread_eigen=(false|0)\b", re.IGNORECASE)
"""Among XLA's flags: the threads are there, and XLA computes in one of them."""
BY_FLAG = "XLA_FLAGS has --xla_cpu_multi_thread_eigen=false: XLA computes in one thread, however many there are"
A_DEVICE = "JAX computes in at least one thread for each of its {} devices, and has no more: fewer can't be had"
NO_CLIENT = "JAX made no client for the processor"
UNKNOWN = "nothing shows how many threads JAX computes with"


class ClientWatch:
    """``written``, ``made``: whether the script runs ahead, as it has it and as it is; None without a client.

    ``in_one_thread``: whether the client's threads are idle, by a flag of XLA's. ``devices``: those of the client.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.written: bool | None = None
        self.made: bool | None = None
        self.in_one_thread = False
        self.devices = 1

    def install(self) -> None:
        """Right after JAX's import; its client is made later."""
        bridge: Any = sys.modules["jax._src.xla_bridge"]
        patch(bridge.xla_client, "make_cpu_client", self._make)

    def _make(self, original: Call) -> Call:
        def make_cpu_client(*args: Any, **kwargs: Any) -> Any:
            session = self.session
            if args or not (session.may_be_of(FRAMEWORK) or is_below(session)):
                return original(*args, **kwargs)
            self.in_one_thread = ONE_THREAD.search(os.environ.get("XLA_FLAGS", "")) is not None
            self.written = bool(kwargs.get("asynchronous", True))
            wanted = session.knobs.wanted(ASYNC)
            if wanted is not None:
                kwargs["asynchronous"] = bool(wanted)
            self.made = bool(kwargs.get("asynchronous", True))
            with _environment(self._variables()):
                client = original(*args, **kwargs)
            self._is_enough(client)
            return client

        return make_cpu_client

    def _variables(self) -> dict[str, str]:
        """Of the environment, as XLA is to find it."""
        wanted = self.session.knobs.wanted
        variables = {} if wanted(THREADS) is None else dict.fromkeys(VARIABLES, str(wanted(THREADS)))
        if wanted(KNOB) is True and self.session.device.kind == "cpu":
            variables[FLAGS] = f"{os.environ.get(FLAGS, '')} {KEEPS_BARRIERS}".strip()
        return variables

    def _is_enough(self, client: Any) -> None:
        """In an applied run: there are as many devices as the profile was proven on, before anything is computed."""
        applied, self.devices = self.session.applied, client.device_count()
        there = self.devices
        if applied is not None and self.session.may_be_of(FRAMEWORK) and there < self.session.request.knowledge.devices:
            applied.computes_on(there, "there is" if there == 1 else "there are")

    def observe(self) -> None:
        """The script's own values, None where they aren't known, and why a knob turns nothing."""
        facts = self.session.facts
        facts.as_written[THREADS] = None if self.in_one_thread else threads() or None
        facts.as_written[ASYNC] = self.written
        if self.in_one_thread:
            facts.left_out[THREADS] = BY_FLAG
        elif self.devices == threads() > 1:
            facts.left_out[THREADS] = A_DEVICE.format(self.devices)

    def report(self) -> None:
        """Evidence."""
        knobs = self.session.knobs
        if THREADS in knobs.requested:
            if self.made is None:
                knobs.inapplicable(THREADS, NO_CLIENT)
            elif self.in_one_thread:
                knobs.report(THREADS, Finding(Evidence.UNVERIFIABLE, BY_FLAG))
            elif threads():
                knobs.compare(THREADS, threads())
            else:
                knobs.report(THREADS, Finding(Evidence.UNVERIFIABLE, UNKNOWN))
        if ASYNC in knobs.requested:
            if self.made is None:
                knobs.inapplicable(ASYNC, NO_CLIENT)
            else:
                knobs.compare(ASYNC, self.made)

    def effects(self) -> dict[str, Effect]:
        """For ``autotune run``."""
        wanted = self.session.knobs.wanted
        why = NO_CLIENT if self.made is None else BY_FLAG if self.in_one_thread else UNKNOWN
        return {
            THREADS: Effect(int(threads() == wanted(THREADS) and not self.in_one_thread), why),
            ASYNC: Effect(int(self.made == wanted(ASYNC)), NO_CLIENT),
        }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """While it lasts XLA finds these; programs that the script starts don't."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def threads() -> int:
    """Threads of this process in which JAX's client computes; 0 where none can be told by its name."""
    return thread_names.count_of(POOL)
