"""Runs the attempts of one run until it ends."""
