"""A run's display whose output goes away, and text that is not the display's own."""

import errno
import io
import sys

import pytest
from support.lost_output import FAULTS, Failing
from support.run_events import PROGRESS, START, TEST

from singa_dask.monitor.progress import LineDisplay, LiveDisplay, display_for
from singa_dask.output.streams import Escaped, Output

HOSTILE = "a\x1b]0;owned\x07b\rc\x9b2Jd\u202ee\u2066f"
SHOWN = r"a\x1b]0;owned\x07b\x0dc\u009b2Jd\u202ee\u2066f"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("whole", [0, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_written_is_said_once_and_ends_no_run(fault, whole, terminal, capsys):
    with display_for(Failing(FAULTS[fault], whole, terminal=terminal)) as display:
        assert isinstance(display, LiveDisplay if terminal else LineDisplay)
        for _ in range(4):
            display.note("forming the worker group")
            display.handle(START)
            display.handle(TEST)
            display.say("auto: 2 workers")
    assert display.lost
    assert capsys.readouterr().err.count("the output of the run cannot be written (") == 1


def test_lines_go_on_where_a_disk_has_space_again():
    stream = Failing(errno.ENOSPC)
    display = LineDisplay(stream)
    display.say("lost")
    stream.whole = 10
    display.say("written")
    assert stream.getvalue() == "written\n" and display.lost


@pytest.mark.parametrize("errors", [None, Failing(errno.EPIPE)])
def test_a_run_without_any_output_goes_on(monkeypatch, errors):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", errors)
    display = display_for()
    display.say("auto: 2 workers")
    assert display.lost


def test_lost_errors_are_lost_output(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Escaped(Output(Failing(errno.ENOSPC))))
    display = LineDisplay(io.StringIO())
    assert not display.lost
    print("a warning", file=sys.stderr, flush=True)
    assert display.lost


def test_a_live_display_escapes_control_characters():
    stream = Failing(None, 1000, terminal=True)
    with display_for(stream) as display:
        display.note(HOSTILE)
        display.say(HOSTILE)
        display.handle(START)
        display.handle({**PROGRESS, "wait": [0.0], "metrics": {HOSTILE: 0.5}})
    shown = stream.getvalue()
    assert SHOWN in shown
    assert not set("\x07\x9b\u202e\u2066") & set(shown) and "\x1b]" not in shown


def test_text_that_the_encoding_lacks_is_escaped_too():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    display = LineDisplay(stream)
    display.say("wü \udcff µ")
    assert stream.buffer.getvalue() == rb"w\xfc \udcff \xb5" + b"\n" and not display.lost
