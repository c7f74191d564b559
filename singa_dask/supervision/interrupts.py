"""Ctrl-C and the signals of batch systems, as a request to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from singa_dask.cluster.stop_signals import FOR_THE_DRIVER


@contextmanager
def interrupts(asked: Callable[[str], bool | None]) -> Iterator[None]:
    """Turn the first KeyboardInterrupt of a signal into a call of `asked`, so that it cannot cut an action in half.

    A second Ctrl-C raises KeyboardInterrupt. Other signals don't: batch systems send them to a process and to its
    launcher, which passes them on. Signals reach the main thread only. asked: gets "Ctrl-C" or the signal's name;
    returns True where the first one is to raise KeyboardInterrupt all the same.
    """
    again = False

    def wrapped(handler: Callable[..., Any], *args: Any) -> None:
        nonlocal again
        try:
            handler(*args)
        except KeyboardInterrupt:
            first, again, ctrl_c = not again, True, args[0] == signal.SIGINT
            if asked("Ctrl-C" if ctrl_c else signal.Signals(args[0]).name) if first else ctrl_c:
                raise

    main = threading.current_thread() is threading.main_thread()
    before = {n: handler for n in FOR_THE_DRIVER if main and callable(handler := signal.getsignal(n))}
    for number, handler in before.items():
        signal.signal(number, lambda *args, handler=handler: wrapped(handler, *args))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
