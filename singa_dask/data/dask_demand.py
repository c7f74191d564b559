"""Asking clusters that Dask scales by the tasks that wait (`cluster.adapt(minimum=0)`) for workers."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# No worker has it: the tasks run nowhere.
_RESOURCE = "demand for workers"


@contextmanager
def demand(client: Any) -> Iterator[Callable[[int, int], None]]:
    """Inside, calls of `ask(count, threads)` have Dask see work for `count` workers with so many threads each.

    Dask scales to as many threads as the tasks that wait would keep busy for its target duration; it takes half a
    second for the duration of a task that it does not know.
    """
    import dask
    from dask.utils import parse_timedelta

    waiting: list[Any] = []
    duration_s, target_s = (
        parse_timedelta(dask.config.get(f"distributed.{name}"))
        for name in ("scheduler.unknown-task-duration", "adaptive.target-duration")
    )

    def ask(count: int, threads: int) -> None:
        lack = math.ceil(count * threads * target_s / duration_s) - len(waiting)
        key = f"demand-{uuid.uuid4().hex}"
        if lack > 0:
            waiting.extend(client.map(_nothing, range(lack), key=key, pure=False, resources={_RESOURCE: 1}))

    try:
        yield ask
    finally:
        if waiting:
            client.cancel(waiting, force=True)


def _nothing(number: int) -> None:
    """A task that never runs."""
