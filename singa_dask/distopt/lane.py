"""The thread in which a rank's collectives run one after another, while the rank computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Lane:
    """Operations of the group in the order in which they are submitted, which must be the same on all ranks.

    threaded: whether in a thread of their own; else at once, in the caller's.
    """

    def __init__(self, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="distopt") if threaded else None

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `call(*args)` after what was submitted before. Collectives end by deadlines of their own."""
        if self._pool is not None:
            return self._pool.submit(call, *args)
        done: Future[Any] = Future()
        done.set_result(call(*args))
        return done

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """What `call(*args)` returns, after what was submitted before."""
        return self.submit(call, *args).result()
