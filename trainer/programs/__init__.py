"""Compiled programs that outlive their process: what they are found by, and where they are kept."""
