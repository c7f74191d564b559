"""The signals that ask a command to stop, wherever they arrive."""

from __future__ import annotations

import signal

from singa_dask.cluster.stop_signals import FOR_THE_DRIVER


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, wherever it arrives.

    Python remembers a plain KeyboardInterrupt that is raised in generated code, such as a dataclass method. The
    process then dies of SIGINT instead of exiting with its code, even if the exception was caught (bpo-1054041).
    """


def interrupt(number: int, frame: object) -> None:
    """The handler of SIGINT. Raises Interrupted."""
    raise Interrupted


class StopSignals:
    """The handler of a driver's signals. The first one raises Interrupted; after it, only Ctrl-C does."""

    def __init__(self) -> None:
        self._heard = False

    @classmethod
    def handled(cls) -> StopSignals:
        """Let all of them do what Ctrl-C does. Those that this process was started to ignore, as by nohup, stay so."""
        handler = cls()
        for number in FOR_THE_DRIVER:
            if signal.getsignal(number) in (signal.SIG_DFL, interrupt):
                signal.signal(number, handler)
        return handler

    def over(self) -> None:
        """There is nothing left to stop: a signal must not cut off what ends the command."""
        self._heard = True

    def __call__(self, number: int, frame: object) -> None:
        if self._heard and number != signal.SIGINT:
            return
        self._heard = True
        raise Interrupted
