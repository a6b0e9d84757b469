"""`python -m launcher.providers.kubernetes.clean RUN_FOLDER`: gives back what a run has left.

What a reaper calls once the launch is gone, in whatever way it went.
"""

import sys
from pathlib import Path

from launcher.providers.kubernetes.made import give_back

if __name__ == "__main__":
    give_back(Path(sys.argv[1]))
