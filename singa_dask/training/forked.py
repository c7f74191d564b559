"""The imports of the fork server, before it forks the first worker. For no other process."""

from __future__ import annotations

import gc

gc.disable()
try:
    import distributed.nanny  # noqa: F401

    import singa_dask.cluster.worker_setup
    import singa_dask.data.numba_gather
    import singa_dask.ops.cpu.elementwise.codec_kernels
    import singa_dask.ops.cpu.ops
    import singa_dask.training.dask_task  # noqa: F401

    # Exclude permanent objects from garbage collection: workers share their pages and never scan them.
    gc.freeze()
finally:
    gc.enable()
