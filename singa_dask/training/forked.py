"""What fork servers do before they fork the first worker. For no other process."""

from __future__ import annotations

import gc
import os

gc.disable()
try:
    import distributed.nanny  # noqa: F401
    import numpy as np

    import singa_dask.cluster.worker_setup
    import singa_dask.data.numba_gather
    import singa_dask.ops.cpu.elementwise.codec_kernels
    import singa_dask.ops.cpu.ops
    import singa_dask.training.dask_task  # noqa: F401
    from singa_dask.ops.cpu.toolkit.numba_parts import load_registries

    load_registries()
    # Forked workers would all begin with the same state of NumPy's global generator.
    os.register_at_fork(after_in_child=np.random.seed)
    # Exclude permanent objects from garbage collection: workers share their pages and never scan them.
    gc.freeze()
except Exception as error:
    # The fork server skips it, and says nothing: workers fail with the same error, and their nannies tell it.
    raise ImportError(f"workers cannot import what they need: {error!r}") from error
finally:
    gc.enable()
