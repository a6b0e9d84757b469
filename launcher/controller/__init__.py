"""Keeps one run going, attempt after attempt."""
