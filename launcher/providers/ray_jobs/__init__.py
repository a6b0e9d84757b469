"""A Ray cluster that is reached by its Jobs API alone."""
