"""Scaled dot-product attention: fused kernels, and the softmax within them."""
