"""Compiles what a run needs on fewer hosts before a host is lost, beside the training.

On CPU devices, real or simulated. libtpu compiles and serializes a program for a description of
devices, but loads it only where the devices are.
"""
