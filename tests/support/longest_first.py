"""The order of tests: long files first, so that no worker ends minutes after the other."""

import pytest

LONG_PAGES_S = {
    "how-to/chains": 94,
    "how-to/checkpoints": 89,
    "how-to/compare-runs": 82,
    "how-to/sweeps": 58,
    "how-to/queue": 57,
    "tutorials/first-run": 52,
    "tutorials/pod-on-your-laptop": 51,
    "how-to/loss-spikes": 46,
    "how-to/audit": 44,
    "tutorials/bring-your-own-model": 35,
    "how-to/plan-and-tune": 33,
}
"""Seconds of the pages whose commands take more than half a minute: each is a test of its own."""
PAGES = "tests/docs/test_commands.py"
LONG_FILES_S = {
    PAGES: 1,
    "tests/docs/test_readme.py": 160,
    "tests/e2e/gcp/test_launch.py": 130,
    "tests/e2e/kubernetes/test_launch.py": 80,
    "tests/e2e/local/test_audit.py": 75,
    "tests/e2e/local/test_budget.py": 60,
    "tests/e2e/local/test_compare.py": 70,
    "tests/e2e/local/test_detached.py": 50,
    "tests/e2e/local/test_flow.py": 150,
    "tests/e2e/local/test_hot_start.py": 42,
    "tests/e2e/local/test_json_outputs.py": 90,
    "tests/e2e/local/test_own_model.py": 30,
    "tests/e2e/local/test_queue.py": 100,
    "tests/e2e/local/test_resize.py": 80,
    "tests/e2e/local/test_resume.py": 60,
    "tests/e2e/local/test_running_cluster.py": 140,
    "tests/e2e/local/test_sources.py": 80,
    "tests/e2e/local/test_spikes.py": 30,
    "tests/e2e/local/test_sweep.py": 110,
    "tests/e2e/local/test_warm.py": 51,
    "tests/e2e/slurm/test_launch.py": 160,
    "tests/e2e/ssh/test_hot_start.py": 30,
    "tests/e2e/ssh/test_launch.py": 110,
    "tests/e2e/ssh/test_shared_programs.py": 54,
    "tests/faults/test_ends.py": 80,
    "tests/faults/test_hosts.py": 120,
    "tests/faults/test_kills.py": 60,
    "tests/faults/test_network.py": 170,
    "tests/faults/test_nodes.py": 168,
    "tests/faults/test_processes.py": 195,
    "tests/faults/test_programs.py": 160,
    "tests/faults/test_spares.py": 110,
    "tests/integration/trainer/test_ahead.py": 30,
    "tests/integration/trainer/test_estimate.py": 65,
    "tests/integration/trainer/test_host_check.py": 30,
    "tests/integration/trainer/test_hot_start.py": 35,
    "tests/integration/trainer/test_object_store.py": 90,
    "tests/integration/trainer/test_programs.py": 100,
    "tests/integration/trainer/test_spikes.py": 45,
    "tests/integration/trainer/test_strategies.py": 45,
}
"""Seconds of the files that take more than half a minute in a tier of `.ci/run`."""


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Moves the tests of long files to the front; the others stay in their order."""
    items.sort(key=lambda item: -_seconds(item.nodeid))


def _seconds(test: str) -> int:
    file, _, name = test.partition("::")
    page = name.partition("[docs/")[2].removesuffix(".md]")
    known = LONG_FILES_S.get(file, 0)
    return LONG_PAGES_S.get(page, known) if file == PAGES else known
