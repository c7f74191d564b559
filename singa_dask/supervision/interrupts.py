"""Ctrl-C and the signals of batch systems, as a request to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from singa_dask.cluster.stop_signals import FOR_THE_DRIVER


@contextmanager
def interrupts(asked: Callable[[str], None]) -> Iterator[None]:
    """Turn the first KeyboardInterrupt of a signal into a call of `asked`, so that it cannot cut an action in half.
    The second one raises KeyboardInterrupt. Signals reach the main thread only. asked: gets "Ctrl-C" or the signal's
    name."""
    again = False

    def wrapped(handler: Callable[..., Any], *args: Any) -> None:
        nonlocal again
        try:
            handler(*args)
        except KeyboardInterrupt:
            if again:
                raise
            again = True
            asked("Ctrl-C" if args[0] == signal.SIGINT else signal.Signals(args[0]).name)

    numbers = (*FOR_THE_DRIVER, signal.SIGUSR1)
    main = threading.current_thread() is threading.main_thread()
    before = {n: handler for n in numbers if main and callable(handler := signal.getsignal(n))}
    for number, handler in before.items():
        signal.signal(number, lambda *args, handler=handler: wrapped(handler, *args))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
