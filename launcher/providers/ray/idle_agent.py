"""`python -I -S idle_agent.py FOLDER NODE_ID NAME...`: takes the place of an agent of a Ray node.

A raylet does not start without its dashboard agent and its runtime environment agent. Slipway uses
neither, and both together need more time to start than the rest of the node. This process
reports to the raylet that their services are off, and ends with the raylet.

Standard library only: it starts without site-packages.
"""

import os
import sys
from pathlib import Path

OFF = "-1"
"""The port by which Ray's own agents report that a service is not in use."""


def main(folder: str, node_id: str, *names: str) -> None:
    """Writes the files by which a raylet learns the ports of its agents, and waits for its end."""
    for name in names:
        path = Path(folder, f"{name}_{node_id}")
        unfinished = path.with_name(f"{path.name}.unfinished")
        unfinished.write_text(OFF)
        unfinished.rename(path)
    while os.read(sys.stdin.fileno(), 1):  # a pipe from the raylet
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
