"""How signals that stop a run are handled where MPI begins."""

from __future__ import annotations

import ctypes
import signal
import threading

import pytest

from singa_dask.cluster.stop_signals import kept_handlers


def own(number, frame):
    pass


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, own])
def test_a_library_that_replaces_a_handler_in_another_thread_replaces_none(handler):
    def begin():
        with kept_handlers():
            libc.signal(signal.SIGUSR2, 1 if handler is not signal.SIG_IGN else 0)

    libc, before = ctypes.CDLL(None), signal.signal(signal.SIGUSR2, handler)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    try:
        kept = libc.signal(signal.SIGUSR2, None)
        libc.signal(signal.SIGUSR2, kept)
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join(20.0)
        assert libc.signal(signal.SIGUSR2, None) == kept
    finally:
        signal.signal(signal.SIGUSR2, before)
