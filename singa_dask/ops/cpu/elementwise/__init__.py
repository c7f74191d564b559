"""Kernels of one pass over memory: activations, losses, normalisation, update rules, codecs."""
