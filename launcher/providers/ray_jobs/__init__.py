"""A Ray cluster that is reached only through its Jobs API."""
