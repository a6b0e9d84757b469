"""The actor of a host, as a plain object."""

import subprocess
import sys

ALONE = """
import time
from launcher.gang import agent
agent.LEASE_S, agent.POLL_INTERVAL_S = 1.0, 0.1
held = agent.Agent()
time.sleep(30)
"""


def test_an_agent_that_is_asked_nothing_for_its_lease_ends_itself() -> None:
    assert subprocess.run([sys.executable, "-c", ALONE]).returncode == 1
