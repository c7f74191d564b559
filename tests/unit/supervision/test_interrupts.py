"""Signals that ask a run to stop: which of them interrupt, and when."""

import signal

import pytest

from singa_dask.supervision.interrupts import interrupts

INT, TERM, HUP, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1


pytestmark = pytest.mark.usefixtures("python_handles_signals")


def raise_quietly(number):
    """pytest would end with KeyboardInterrupt."""
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        pytest.fail(f"{number.name} interrupts")


@pytest.mark.parametrize(
    ("sent", "asked", "aborts"),
    [
        ((INT,), "Ctrl-C", False),
        ((INT, INT), "Ctrl-C", True),
        ((TERM, INT), "SIGTERM", True),
        ((TERM, TERM), "SIGTERM", False),
        ((TERM, TERM, HUP, USR1, TERM), "SIGTERM", False),
        ((HUP, HUP), "SIGHUP", False),
        ((USR1, TERM), "SIGUSR1", False),
        ((INT, TERM), "Ctrl-C", False),
        ((INT, TERM, INT), "Ctrl-C", True),
    ],
)
def test_only_ctrl_c_aborts_what_the_first_signal_began(sent, asked, aborts):
    heard, aborted = [], []
    with interrupts(heard.append):
        for number in sent:
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                aborted.append(number)
    assert heard == [asked] and aborted == [INT] * aborts


def test_the_first_signal_interrupts_where_there_is_nothing_to_stop():
    heard = []
    with interrupts(lambda by: heard.append(by) or True):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(TERM)
        raise_quietly(TERM)  # while what the first one ended is cleared away
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(INT)
    assert heard == ["SIGTERM"]


def test_one_within_another_takes_what_the_outer_one_lets_through():
    heard, training = [], [True]
    with interrupts(lambda by: training[0]):
        with interrupts(heard.append):
            raise_quietly(TERM)
            raise_quietly(TERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(INT)
        training[0] = False
        raise_quietly(TERM)
    assert heard == ["SIGTERM"]
    with interrupts(lambda by: training[0]):
        raise_quietly(TERM)
