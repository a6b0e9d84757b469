"""Hosts simulated on this machine."""
