"""Estimates of step time and memory from a plan alone, and the search over plans."""
