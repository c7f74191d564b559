"""Ops on the CPU, one base class per family of kernels."""

from __future__ import annotations

from typing import ClassVar

from singa_dask.ops.cpu.attention.attention_ops import CpuAttentionOps
from singa_dask.ops.cpu.convolution.convolution_ops import CpuConvolutionOps
from singa_dask.ops.cpu.elementwise.batch_norm_ops import CpuBatchNormOps
from singa_dask.ops.cpu.elementwise.elementwise_ops import CpuElementwiseOps
from singa_dask.ops.cpu.gemm.gemm_ops import CpuGemmOps
from singa_dask.ops.cpu.pooling.pooling_ops import CpuPoolingOps
from singa_dask.ops.cpu.recurrent.recurrent_ops import CpuRecurrentOps


class CpuOps(
    CpuGemmOps,
    CpuConvolutionOps,
    CpuPoolingOps,
    CpuRecurrentOps,
    CpuAttentionOps,
    CpuBatchNormOps,
    CpuElementwiseOps,
):
    """NumPy and Numba. Every override computes what its base does, on C-contiguous arrays.

    threads: share the work of a kernel. With several, limit BLAS to one thread (ops/blas.py): its threads spin
    for milliseconds after each product, on the cores that the next kernel needs.
    """

    device: ClassVar[str] = "cpu"
