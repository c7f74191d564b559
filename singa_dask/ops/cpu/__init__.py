"""Ops on the CPU: CpuOps (`ops.py`), its convolutions and threads, and the kernels that both call."""
