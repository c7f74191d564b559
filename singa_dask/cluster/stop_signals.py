"""The signals that ask a run to stop, which its driver alone obeys: it has the workers save before they end.

Terminals (Ctrl-C, Ctrl-\\, closing), timers and batch systems send them, most of them to every process of a run.
"""

from __future__ import annotations

import signal

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
