"""The signals that ask a command to stop."""

import signal

import pytest

from singa_dask.cli.signals import Interrupted, StopSignals, interrupt
from singa_dask.cluster.stop_signals import FOR_THE_DRIVER, dask_setup

INT, TERM, HUP, QUIT = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.signal(number, signal.SIG_DFL) for number in FOR_THE_DRIVER}
    signal.signal(INT, interrupt)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def raised(*numbers):
    """Those that interrupt."""
    interrupting = []
    for number in numbers:
        try:
            signal.raise_signal(number)
        except Interrupted:
            interrupting.append(number)
    return interrupting


@pytest.mark.parametrize("number", FOR_THE_DRIVER)
def test_the_first_signal_interrupts_and_after_it_only_ctrl_c(number):
    StopSignals.handled()
    assert raised(number, *FOR_THE_DRIVER) == [number, INT]


def test_at_the_end_only_ctrl_c_interrupts():
    StopSignals.handled().over()
    assert raised(*FOR_THE_DRIVER, *FOR_THE_DRIVER) == [INT, INT]


def test_what_a_process_was_started_to_ignore_stays_ignored():
    signal.signal(HUP, signal.SIG_IGN)
    signal.signal(QUIT, signal.SIG_IGN)
    StopSignals.handled()
    assert raised(HUP, QUIT, TERM) == [TERM]


def test_processes_of_dask_leave_them_to_the_driver():
    dask_setup(None)
    assert {signal.getsignal(number) for number in FOR_THE_DRIVER} == {signal.SIG_IGN}
