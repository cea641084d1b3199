"""Which trials may be forked, and when servers are given up."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.forked import KNOWN_OF_JAX, KNOWN_OF_KERAS, asked

from tuner.knowledge import Knowledge
from tuner.model import Config, Device, Script
from tuner.runner import fork_servers
from tuner.runner.fork_server import ForkedRank, ServerFault, ServerRefusal, Start
from tuner.runner.fork_servers import SERVERS, WORTH_ANOTHER, ForkServers, Launch, may_fork
from tuner.runner.rank_launch import forked_ranks, of_all_ranks
from tuner.runner.rank_starter import OWN, environment_of
from tuner.runner.request import TrialRequest

CARD = Device("cuda", 0, "card", "", 0)


class MadeUpServer:
    """A server that is never started."""

    made = 0
    faults: Mapping[str, Exception] = {}

    def __init__(self, *given: Any) -> None:
        type(self).made += 1
        if "made" in self.faults:
            raise self.faults["made"]
        self.is_ready = False
        self.pid, self.loaded_s, self.is_free = type(self).made, 3.0 / type(self).made, True
        self.trials = 0

    def wait_until_ready(self, stop: threading.Event | None = None, ends_by: float = math.inf) -> None:
        if "loaded" in self.faults and self.pid > 1:
            raise self.faults["loaded"]
        self.is_ready = True

    def start(self, given: Start) -> str:
        assert self.is_ready
        if "start" in self.faults:
            raise self.faults["start"]
        self.trials += 1
        return f"guard of {self.pid} with {dict(given.variables)}"

    def close(self) -> None:
        self.is_free = False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[MadeUpServer]:
    class Fresh(MadeUpServer):
        faults: Mapping[str, Exception] = {}

    monkeypatch.setattr(fork_servers, "ForkServer", Fresh)
    return Fresh


@pytest.fixture
def request_(tmp_path: Path) -> TrialRequest:
    (script := tmp_path / "train.py").write_text("import torch\n")
    return asked(tmp_path / "trial", script, fresh=False)


def launch_of(request: TrialRequest, **environment: str) -> Launch:
    return Launch(request, ["python", "child"], {"A": "1", **environment})


def ready(servers: ForkServers, request: TrialRequest, **environment: str) -> Any:
    return servers.ready(launch_of(request, **environment))


def test_only_what_a_server_can_have_imported_for_is_forked(request_: TrialRequest) -> None:
    assert may_fork(request_) and may_fork(replace(request_, seed=3)) and may_fork(replace(request_, device=CARD))
    assert may_fork(replace(request_, knowledge=KNOWN_OF_KERAS, config=Config({"inter_op_threads": 2})))
    assert may_fork(replace(request_, ranks=2)) and may_fork(replace(request_, knowledge=KNOWN_OF_JAX))
    script = request_.script
    for field in (
        {"device": CARD, "ranks": 2}, {"ranks": 2, "config": {"threads": 2}}, {"plain": True},
        {"knowledge": Knowledge()}, {"config": {"threads": 2}},
        {"knowledge": Knowledge(framework="another")}, {"device": Device("tpu", 0, "chip", "", 0)},
        {"device": CARD, "knowledge": KNOWN_OF_KERAS}, {"device": CARD, "knowledge": KNOWN_OF_JAX},
        {"script": replace(script, path="", module="package.train")}, {"script": Script("", ())},
    ):  # fmt: skip
        assert not may_fork(replace(request_, **field)), field


def test_trials_take_turns_with_the_servers(
    server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path
) -> None:
    def started() -> int:
        fork = ready(servers, request_)
        fork.start(tmp_path, {}, 0, {})
        return int(fork.server)

    servers = ForkServers()
    few = WORTH_ANOTHER
    assert [started() for _ in range(SERVERS * few)] == [1, 2] * few + [3] * few
    assert [started() for _ in range(2 * SERVERS)] == [1, 2, 3, 1, 2, 3]
    assert ready(servers, request_).spared_s == 1.0, "the quickest tells what imports take"
    servers.alive[0].is_free = servers.alive[1].is_free = False  # type: ignore[misc]
    assert ready(servers, request_).server == 3, "of one that has a living trial none is forked"
    servers.alive[2].is_free = False  # type: ignore[misc]
    assert ready(servers, request_) is None


def test_what_starts_fresh_has_a_server_for_itself_or_none(
    server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path
) -> None:
    fresh = replace(request_, fresh=True)
    servers = ForkServers()
    assert ready(servers, fresh) is None, "the baseline's own run"
    assert ready(servers, request_).server == 1
    assert ready(servers, fresh) is None, "off one that was loaded for the search"
    other = replace(fresh, config=Config({"precision": "bf16"}))
    servers.load_for_each([launch_of(fresh), launch_of(other)], threading.Event())
    loaded = server.made
    first = ready(servers, fresh)
    assert first.server == loaded - 1 and first.start(tmp_path, {}, 0, {}) is not None
    assert servers.start_unlike
    second = ready(servers, other)
    assert second.server == loaded and second.start(tmp_path, {}, 0, {}) is not None
    assert not servers.start_unlike
    assert ready(servers, fresh) is None, "each of them has begun the one trial of this round"
    servers.close()
    assert ready(servers, fresh) is None
    assert server.made == loaded


@pytest.mark.parametrize("count", [2, 3])
def test_rounds_share_servers_of_which_none_begins_a_config_twice(
    server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path, count: int
) -> None:
    """What a layout of memory does to a rate meets each config once, and another set of servers follows."""
    configs = [Config({"grad_accumulation": number}) if number else Config() for number in range(count)]
    begun, servers = list[tuple[int, Config]](), ForkServers()
    for number in range(2 * count):
        order = configs[number % count :] + configs[: number % count]
        trials = [replace(request_, fresh=True, config=config) for config in order]
        servers.load_for_each([launch_of(trial) for trial in trials], threading.Event())
        for trial in trials:
            fork = ready(servers, trial)
            assert fork.start(tmp_path, {}, 0, {}) is not None
            begun.append((fork.server, trial.config))
        assert not servers.start_unlike
    assert server.made == 2 * count and len(set(begun)) == len(begun) == 2 * count**2


def test_servers_of_a_round_are_no_others(server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path) -> None:
    """Another round of other configs, of one config twice, or after one that is still alive, has servers of its own."""
    fresh, servers = replace(request_, fresh=True), ForkServers()
    other, third = (replace(fresh, config=Config({"grad_accumulation": number})) for number in (2, 3))

    def round_of(*trials: TrialRequest) -> int:
        servers.load_for_each([launch_of(trial) for trial in trials], threading.Event())
        for trial in trials:
            assert ready(servers, trial).start(tmp_path, {}, 0, {}) is not None
        return server.made

    assert round_of(fresh, other) == 2 and round_of(fresh, third) == 4
    assert round_of(fresh, fresh) == 6 and round_of(fresh, fresh) == 8
    assert round_of(fresh, other) == 10
    servers.alive[0].is_free = False  # type: ignore[misc]
    assert round_of(fresh, other) == 12 and round_of(other, fresh) == 12
    servers.load_for_each([launch_of(fresh), launch_of(other)], threading.Event())
    servers.load_for_each([launch_of(fresh), launch_of(other)], threading.Event())
    assert server.made == 16, "a round that didn't begin leaves none that is known to be alike"


@pytest.mark.parametrize("environment", [{"OMP_NUM_THREADS": "1"}, {}])
def test_what_takes_turns_starts_alike(
    server: type[MadeUpServer], request_: TrialRequest, environment: dict[str, str]
) -> None:
    """With threads a trial starts fresh, and so does what it takes turns with."""
    fresh, servers = replace(request_, fresh=True), ForkServers()
    other = fresh if environment else replace(fresh, config=Config({"threads": 2}))
    servers.load_for_each([launch_of(fresh), launch_of(other, **environment)], threading.Event())
    assert ready(servers, fresh) is None and server.made == 0


def test_one_server_that_isnt_ready_leaves_all_to_start_fresh(
    server: type[MadeUpServer], request_: TrialRequest
) -> None:
    fresh, servers = replace(request_, fresh=True), ForkServers()
    server.faults = {"loaded": ServerFault("it hangs")}
    servers.load_for_each([launch_of(fresh), launch_of(fresh)], threading.Event())
    assert ready(servers, fresh) is None and not servers.alive and not servers.why_not
    server.faults = {}
    servers.load_for_each([launch_of(fresh), launch_of(fresh)], threading.Event())
    assert ready(servers, fresh) is not None


@pytest.mark.parametrize("cores", [1, 2])
def test_another_server_is_ready_or_started_where_the_first_one_has_a_living_trial(
    server: type[MadeUpServer], request_: TrialRequest, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """The second one is loaded beside the first where a core is left for it, so that nobody waits for it later."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    servers = ForkServers()
    assert ready(servers, request_).server == ready(servers, request_).server == 1
    assert server.made == cores
    servers.alive[0].is_free = False  # type: ignore[misc]
    assert ready(servers, request_).server == server.made == 2


def test_what_differs_from_a_servers_world_starts_fresh(
    server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = ForkServers()
    fork = ready(servers, request_, MLFLOW_TRACKING_URI="a")
    assert fork.start(tmp_path, {"MLFLOW_TRACKING_URI": "b", "A": "1"}, 0, {}) == (
        "guard of 1 with {'MLFLOW_TRACKING_URI': 'b'}"
    )
    assert ready(servers, request_, MLFLOW_TRACKING_URI="b") is not None
    assert ready(servers, request_, MLFLOW_TRACKING_URI="b", OMP_NUM_THREADS="1") is None
    assert ready(servers, request_) is None, "a variable that is absent"
    Path(request_.script.path).write_text("import numpy\nimport torch\n")
    assert ready(servers, request_, MLFLOW_TRACKING_URI="b") is None
    Path(request_.script.path).write_text("import torch\n")
    with monkeypatch.context() as fewer:
        fewer.setattr("os.sched_getaffinity", lambda pid: {0})
        assert ready(servers, request_, MLFLOW_TRACKING_URI="b") is None
    assert ready(servers, request_, MLFLOW_TRACKING_URI="b") is not None
    monkeypatch.chdir(tmp_path)
    assert ready(servers, request_, MLFLOW_TRACKING_URI="b") is None


def test_a_server_for_ranks_has_what_all_of_them_find_and_nothing_of_one(
    request_: TrialRequest,
) -> None:
    """Threads are torchrun's, unless the user says how many: libraries read them at their import."""
    request = replace(request_, ranks=2)
    for threads in (None, "3"):
        given = {"A": "1", "LOCAL_RANK": "7", **({"OMP_NUM_THREADS": threads} if threads else {})}
        found = of_all_ranks(given, 2)
        assert (found["A"], found["WORLD_SIZE"], found["OMP_NUM_THREADS"]) == ("1", "2", threads or "1")
        assert not found.keys() & {*OWN}
        for number, rank in enumerate(forked_ranks(given, request)):
            assert {**found, **rank.variables} == {**given, **environment_of(number, 2, port_of(rank), given)}
            assert rank.log == ("" if not number else str(request.folder / "log-1.txt"))
    basis = fork_servers._basis(Launch(request, ["python", "child"], of_all_ranks({}, 2)))
    assert basis is not None and basis.apart == OWN
    alone = fork_servers._basis(Launch(request_, ["python", "child"], of_all_ranks({}, 1)))
    assert alone is not None and (alone.apart, alone.environment) == ((), ())


def port_of(rank: ForkedRank) -> int:
    assert rank.variables["MASTER_ADDR"] == "127.0.0.1"
    return int(rank.variables["MASTER_PORT"])


def test_a_script_that_imports_no_framework_at_its_top_needs_no_server(
    server: type[MadeUpServer], request_: TrialRequest
) -> None:
    Path(request_.script.path).write_text("import numpy\nx = 1\nimport torch\n")
    assert ready(ForkServers(), request_) is None
    Path(request_.script.path).unlink()
    assert ready(ForkServers(), request_) is None
    assert server.made == 0


@pytest.mark.parametrize(
    ("source", "serves"),
    [("import keras\n", True), ("from tensorflow.keras import layers\n", True), ("import numpy\nimport torch\n", False),
     ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n", False)],
)  # fmt: skip
def test_what_keras_trains_needs_a_server_that_has_it(
    server: type[MadeUpServer], request_: TrialRequest, source: str, *, serves: bool
) -> None:
    Path(request_.script.path).write_text(source)
    known = replace(KNOWN_OF_KERAS, optimizers=("Adam",), framework_version="2.21.0")
    request = replace(request_, knowledge=known)
    assert (ready(ForkServers(), request) is not None) is serves
    basis = fork_servers._basis(launch_of(request))
    assert basis is None or "torch._dynamo" not in [name for _, name, _ in basis.imports]


@pytest.mark.parametrize("when", ["made", "start"])
def test_two_faults_and_no_server_is_used_any_more(
    server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path, when: str
) -> None:
    servers = ForkServers()
    server.faults = {when: ServerFault("it hangs")}
    for _ in range(2):
        assert not servers.why_not
        fork = ready(servers, request_)
        assert fork is None if when == "made" else fork.start(tmp_path, {}, 0, {}) is None
    assert servers.why_not == "it hangs" and not servers.alive
    assert ready(servers, request_) is None and server.made == 2


def test_a_server_that_is_given_up_is_ended(
    server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path
) -> None:
    """Without a file descriptor left nothing was asked of it: it would wait on, with all that it has imported."""
    servers = ForkServers()
    fork, made = ready(servers, request_), servers.alive[0]
    server.faults = {"start": OSError(errno.EMFILE, "Too many open files")}
    assert fork.start(tmp_path, {}, 0, {}) is None
    assert made not in servers.alive and not made.is_free


@pytest.mark.parametrize("when", ["made", "start"])
def test_a_refusal_is_enough(
    server: type[MadeUpServer], request_: TrialRequest, tmp_path: Path, when: str
) -> None:
    servers = ForkServers()
    server.faults = {when: ServerRefusal("an import started threads: 3")}
    fork = ready(servers, request_)
    assert fork is None if when == "made" else fork.start(tmp_path, {}, 0, {}) is None
    assert servers.why_not == "an import started threads: 3"


@pytest.mark.parametrize(
    ("source", "module", "known", "early"),
    [("import torch\n", "", {}, True), ("import torch\n", "import os\n", {}, True),
     ("import os, torch\nos.environ['A'] = '1'\n", "", {}, False), ("import torch\n", "environ", {}, False),
     ("import torch\n", "", {"optimizers": ()}, False), ("import torch\n", "", {"framework_version": "2.0.1"}, False),
     ("import torch\n", "", {"framework_version": ""}, False), ("import torch\n", None, {}, False),
     ("import torch\nimport data, models.nets\n", "", {}, True), ("import torch\nimport speedkit\n", "", {}, False),
     ("import torch\n", "def later():\n    from speedkit import fast\n", {}, False)],
)  # fmt: skip
def test_what_optimizers_import_is_loaded_where_nobody_could_tell(
    request_: TrialRequest, source: str, module: str | None, known: dict[str, Any], *, early: bool
) -> None:
    tmp_path = Path(request_.script.path).parent
    Path(request_.script.path).write_text(source)
    if module is not None:
        (tmp_path / "data.py").write_text(module)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "nets.py").write_text("from . import layers\nimport numpy\n")
    modules = {"data.py": "0" * 64, "models/nets.py": "0" * 64}
    facts: dict[str, Any] = {"optimizers": ("Adam",), "framework_version": "2.13.0+cpu", "module_hashes": modules}
    request = replace(request_, knowledge=replace(request_.knowledge, **{**facts, **known}))
    basis = fork_servers._basis(launch_of(request))
    assert basis is not None
    assert ("torch._dynamo" in [name for _, name, _ in basis.imports]) is early
