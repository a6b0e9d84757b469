"""Machines that are reached by SSH: provisioning, and the Ray nodes on them."""
