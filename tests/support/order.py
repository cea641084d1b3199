"""Plugin: in which order files of tests are given to the processes that run them at once.

By their names, whatever folder they lie in: those that wait for something (most of ``faults``) are spread among those
that compute, and the cores are in use all the while. Folder by folder, three files that wait were run at once. The
longest are begun first: one that begins last is waited for by all other processes.
"""

from __future__ import annotations

import pytest

# A quarter of a minute of a core, or more, or as long a wait.
LONGEST = frozenset({
    "test_beside_the_script_as_written.py", "test_cli_record.py", "test_cli_study_ends.py", "test_compiled_turns.py",
    "test_compiling.py", "test_fork_server.py", "test_jax_batches.py", "test_keras_claims.py", "test_keras_fit.py",
    "test_run_trained.py", "test_samplers.py", "test_stalls.py", "test_study_budget.py", "test_study_faults.py",
    "test_tf_data.py", "test_tf_loops.py", "test_torch_loaders.py", "test_torch_parts.py", "test_trials_by_turns.py",
    "test_untrusted_files.py",
})  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the files; the tests of each keep their order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (item.path.name not in LONGEST, item.path.name))
