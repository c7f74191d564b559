"""Run by each Python process that has this folder in PYTHONPATH: it emulates GPUs where CUDA_ON_CPU says how many."""

import os

if os.environ.get("CUDA_ON_CPU"):
    from cuda_on_cpu import emulation

    emulation.install()
