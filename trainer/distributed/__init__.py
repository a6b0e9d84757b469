"""Connects the processes of an attempt, lets them agree, and stops them together."""
