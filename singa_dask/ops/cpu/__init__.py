"""Ops on the CPU: CpuOps (`ops.py`), and a folder per family of kernels.

`*_ops.py` choose a kernel and share its work among threads, `*_kernels.py` are compiled by Numba.
"""
