"""What all tests share."""

from hypothesis import settings

# A slow machine is no bug, and a failure must come again: no deadline, the same examples each run.
settings.register_profile("slipway", deadline=None, derandomize=True)
settings.load_profile("slipway")
