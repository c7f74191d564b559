"""What the process that workers are forked from imports, before it forks the first."""

from __future__ import annotations

import gc

gc.disable()

import distributed.nanny  # noqa: E402, F401

import singa_dask.cluster.worker_setup  # noqa: E402
import singa_dask.ops.cpu.ops  # noqa: E402
import singa_dask.training.crew  # noqa: E402, F401

# Collections leave alone what is there for good: workers share its pages, and don't go through it again and again.
gc.freeze()
gc.enable()
