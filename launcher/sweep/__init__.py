"""The points of a sweep, and which of them continue; pure functions."""
