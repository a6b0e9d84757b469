"""Compiles what a run needs on fewer hosts before a host is lost, beside the training.

On CPU devices, real or simulated. For TPUs and GPUs, XLA needs the devices themselves or a
description of exactly these, and the program that such a description gives cannot be tried without
them.
"""
