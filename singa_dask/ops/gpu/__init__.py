"""Ops on the GPU: GpuOps (`ops.py`) on CuPy, and kernels of its own."""
