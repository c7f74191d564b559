"""Tensors on devices, what was computed from what, and the way back: calls, and gradients over a graph of them."""
