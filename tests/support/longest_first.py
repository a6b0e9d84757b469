"""The order of tests: long files first, so that no worker ends minutes after the other."""

import pytest

LONG_PAGES_S = {
    "how-to/checkpoints": 62,
    "tutorials/first-run": 52,
    "how-to/chains": 51,
    "tutorials/pod-on-your-laptop": 48,
    "how-to/sweeps": 44,
    "how-to/plan-and-tune": 43,
    "tutorials/bring-your-own-model": 40,
    "how-to/compare-runs": 33,
}
"""Seconds of the pages whose commands take more than half a minute: each is a test of its own."""
PAGES = "tests/docs/test_commands.py"
LONG_FILES_S = {
    PAGES: 1,
    "tests/docs/test_browser.py": 78,
    "tests/docs/test_readme.py": 207,
    "tests/e2e/gcp/test_launch.py": 172,
    "tests/e2e/kubernetes/test_launch.py": 77,
    "tests/e2e/local/test_audit.py": 123,
    "tests/e2e/local/test_audit_versions.py": 47,
    "tests/e2e/local/test_budget.py": 64,
    "tests/e2e/local/test_command.py": 54,
    "tests/e2e/local/test_compare.py": 96,
    "tests/e2e/local/test_detached.py": 77,
    "tests/e2e/local/test_diagnosis.py": 55,
    "tests/e2e/local/test_flow.py": 97,
    "tests/e2e/local/test_json_outputs.py": 75,
    "tests/e2e/local/test_output.py": 37,
    "tests/e2e/local/test_own_model.py": 61,
    "tests/e2e/local/test_queue.py": 160,
    "tests/e2e/local/test_resize.py": 41,
    "tests/e2e/local/test_resume.py": 52,
    "tests/e2e/local/test_running_cluster.py": 147,
    "tests/e2e/local/test_sources.py": 86,
    "tests/e2e/local/test_spikes.py": 47,
    "tests/e2e/local/test_sweep.py": 177,
    "tests/e2e/local/test_warm.py": 69,
    "tests/e2e/slurm/test_launch.py": 158,
    "tests/e2e/ssh/test_hot_start.py": 35,
    "tests/e2e/ssh/test_launch.py": 131,
    "tests/e2e/ssh/test_shared_programs.py": 88,
    "tests/faults/test_ends.py": 43,
    "tests/faults/test_hosts.py": 187,
    "tests/faults/test_in_memory.py": 160,
    "tests/faults/test_kills.py": 113,
    "tests/faults/test_network.py": 194,
    "tests/faults/test_nodes.py": 171,
    "tests/faults/test_notice.py": 50,
    "tests/faults/test_processes.py": 176,
    "tests/faults/test_programs.py": 196,
    "tests/faults/test_saves.py": 57,
    "tests/faults/test_shared_programs.py": 68,
    "tests/faults/test_spares.py": 78,
    "tests/faults/test_standby.py": 32,
    "tests/faults/test_wrong_host.py": 31,
    "tests/integration/launcher/test_program_sync.py": 35,
    "tests/integration/trainer/test_ahead.py": 83,
    "tests/integration/trainer/test_distillation.py": 31,
    "tests/integration/trainer/test_estimate.py": 57,
    "tests/integration/trainer/test_experts.py": 36,
    "tests/integration/trainer/test_group_sums.py": 72,
    "tests/integration/trainer/test_host_check.py": 56,
    "tests/integration/trainer/test_hot_start.py": 72,
    "tests/integration/trainer/test_layer_kinds.py": 32,
    "tests/integration/trainer/test_object_store.py": 126,
    "tests/integration/trainer/test_optimizer.py": 36,
    "tests/integration/trainer/test_processes.py": 47,
    "tests/integration/trainer/test_programs.py": 96,
    "tests/integration/trainer/test_quantized.py": 39,
    "tests/integration/trainer/test_resume.py": 70,
    "tests/integration/trainer/test_same_numbers.py": 65,
    "tests/integration/trainer/test_spikes.py": 64,
    "tests/integration/trainer/test_strategies.py": 65,
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
