"""Runs one program on all hosts or none, through Ray."""
