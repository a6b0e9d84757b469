"""Machines that are reached by SSH: what they get, and the Ray nodes on them."""
