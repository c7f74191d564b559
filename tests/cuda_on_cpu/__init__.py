"""CUDA on a CPU, below the real CuPy: its Python, its Cython and its generated kernels run as they are.

CUDA's driver, cuBLAS, NCCL and NVRTC are small libraries of the same names (`device/`), which g++ compiles at their
first use (`build.py`). The runtime, which CuPy's module `runtime` contains, is replaced by way of the table through
which CuPy's other modules call it (`device/runtime.cpp`). `start/` enters all this in each process of a run.

Memory is poisoned and guarded. Work of streams other than the null stream is put off (`device/streams.cpp`).
"""
