"""What differs from Dask's own settings in clusters that are started here."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, Any] = {
    # The group is the unit of failure: its driver starts it again, Dask must not start single ranks again.
    "distributed.scheduler.allowed-failures": 0,
    # Threads that compute for hours share their cores with this: by default a worker looks at the stacks of all its
    # threads 100 times a second, and every process 50 times at how late its event loop is.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
}
