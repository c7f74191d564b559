"""The signals that ask a run to stop, which its driver alone obeys: it has the workers save before they end.

Terminals (Ctrl-C, Ctrl-\\, closing), timers and batch systems send them, most of them to every process of a run.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

FOR_THE_DRIVER = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def dask_setup(process: object) -> None:
    """Leave them to the driver: for Dask schedulers, nannies and workers that have this module as a preload."""
    for number in FOR_THE_DRIVER:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Bring back how these signals are handled now: MPICH replaces the handler of SIGUSR1, and its own crashes where
    the signal was ignored. Unlike signal.signal, for any thread."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(("PyOS_getsig", ctypes.pythonapi))
    put = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("PyOS_setsig", ctypes.pythonapi))
    before = {number: get(number) for number in FOR_THE_DRIVER}
    try:
        yield
    finally:
        for number, handler in before.items():
            put(number, handler)
