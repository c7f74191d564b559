"""Numba kernels, and the register tiles and transforms in LLVM IR that they are made of."""
