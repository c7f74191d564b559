"""What the process that workers are forked from imports, before it forks the first. For no other process."""

from __future__ import annotations

import gc

gc.disable()
try:
    import distributed.nanny  # noqa: F401

    import singa_dask.cluster.worker_setup
    import singa_dask.data.numba_gather
    import singa_dask.ops.cpu.elementwise.codec_kernels
    import singa_dask.ops.cpu.ops
    import singa_dask.training.gang  # noqa: F401

    # Collections leave alone what is there for good: workers share its pages, and don't go through it again and again.
    gc.freeze()
finally:
    gc.enable()
