"""Replays steps of a run, compares what both have computed, and names the step and the host."""
