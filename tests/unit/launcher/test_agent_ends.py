"""What the text of Ray's errors says of an agent; real agents are in integration/launcher/gang."""

import pytest

from launcher.gang.agent_ends import out_of_memory

RAY_2_60 = """\
1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 127.0.0.2, \
ID: d73ded5d) was 3.11GB used / 23.54GB limit (0.131952)
OOM kill reason: Memory usage 3315679232B exceeded threshold of 3311222784B (13.1% of \
25276510208B limit)
"""
RAY_2_40 = """\
Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.2, ID: d73ded5d) where the task was running was 28.50GB / 29.99GB \
(0.950309), which exceeds the memory usage threshold of 0.95. Ray killed this worker because ...
"""


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (RAY_2_60, "3.11GB of 23.54GB of memory were used, its threshold is 13.1%"),
        (RAY_2_40, "28.50GB of 29.99GB of memory were used, its threshold is 0.95"),
        ("low on memory\nof a future version", "low on memory"),
    ],
)
def test_a_kill_by_rays_memory_monitor_has_its_figures(text: str, figures: str) -> None:
    assert out_of_memory(text) == (
        "out of memory: Ray's memory monitor killed the agent, and the program with it "
        f"({figures}). Use less memory per host, or start that Ray with "
        "RAY_memory_monitor_refresh_ms=0"
    )
