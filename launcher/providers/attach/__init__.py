"""A Ray cluster that already runs."""
