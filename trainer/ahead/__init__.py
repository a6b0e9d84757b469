"""Compiles for hosts before a run needs them: for fewer hosts, beside the training, or at its plan.

On CPU devices, real or simulated. libtpu compiles and serializes a program for a description of
devices, but loads it only where the devices are.
"""
