"""Plugin: in which order files of tests are given to the processes that run them at once, and which stay together.

By their names, whatever folder they lie in: those that wait for something (most of ``faults``) are spread among those
that compute, and the cores are in use all the while. Folder by folder, three files that wait were run at once. The
longest are begun first: one that begins last is waited for by all other processes.

TensorFlow takes 5 s of a core in each process that imports it, and as long in the server that forks its scripts: the
files that need it are those of two processes, Keras' and TensorFlow's own.
"""

from __future__ import annotations

from typing import Any

import pytest

# A quarter of a minute of a core, or more, or as long a wait.
LONGEST = frozenset({
    "test_beside_the_script_as_written.py", "test_cli_record.py", "test_cli_run.py", "test_cli_study_ends.py",
    "test_compiled_turns.py", "test_compiling.py", "test_ddp_knobs.py", "test_fork_server.py", "test_jax_batches.py",
    "test_jax_child.py", "test_loaders_for_jax.py", "test_rank_turns.py", "test_ranks.py", "test_run_trained.py",
    "test_run_watched.py", "test_samplers.py", "test_stalls.py", "test_stats_coverage.py", "test_study_budget.py",
    "test_study_faults.py", "test_torch_loaders.py", "test_torch_parts.py", "test_trials_by_turns.py",
    "test_untrusted_files.py",
})  # fmt: skip


TOGETHER = {
    "test_forked_keras": "keras", "test_keras": "keras", "test_short_epochs": "tensorflow",
    "test_steps_without_instruments": "tensorflow", "test_tf": "tensorflow", "test_tpu_strategy": "keras",
    "test_unwatched_calls": "tensorflow",
}  # fmt: skip
"""How names of files begin whose tests are one process's, and what it has imported."""


def unit_of(nodeid: str) -> str:
    """The tests that are one process's: a file's, or those of several."""
    path = nodeid.partition("::")[0]
    name = path.rpartition("/")[2]
    return next((unit for begins, unit in TOGETHER.items() if name.startswith(begins)), path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the files; the tests of each keep their order."""
    if hasattr(config, "workerinput"):
        items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool, str]:
    together = unit_of(item.nodeid) in TOGETHER.values()
    return not together, item.path.name not in LONGEST, item.path.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadfile``: by files, and by those that stay together."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has none

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler
