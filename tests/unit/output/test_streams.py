"""Streams that may go away, and the escaping of text."""

import errno
import io
import json
import os

import pytest
from rich.table import Table
from rich.text import Text
from support.lost_output import FAULTS, Failing

from singa_dask.output.console import Console
from singa_dask.output.streams import Escaped, Output, escape, for_data, for_messages, occupy_descriptors


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext \\x1b µ 漢 é", "plain\n\ttext \\x1b µ 漢 é"),
        ("\x00\x07\x08\x0b\x0c\r\x1b", r"\x00\x07\x08\x0b\x0c\x0d\x1b"),
        ("\x7f\x80\x9b\x9f\xa0", "\\u007f\\u0080\\u009b\\u009f\xa0"),
        ("\u202a\u202e\u2066\u2069\u202f", "\\u202a\\u202e\\u2066\\u2069\u202f"),
    ],
)
def test_what_is_escaped(text, shown):
    assert escape(text) == shown == escape(shown)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_escaped_json_is_the_same_json(ascii_only):
    told = {"a\x1b\x7f\x9b\u202e\n": ["\r", 0.5]}
    assert json.loads(escape(json.dumps(told, ensure_ascii=ascii_only))) == told


@pytest.mark.parametrize("fault", FAULTS)
def test_an_output_raises_nothing_and_remembers_why(fault):
    output = Output(Failing(FAULTS[fault], 1))
    assert output.write("there") == 5 and output.fault is None
    assert output.write("lost") == 4
    output.flush()
    assert output.cause == (os.strerror(FAULTS[fault]) if FAULTS[fault] else "I/O operation on closed file.")
    assert output.getvalue() == "there"


def test_a_closed_pipe_leaves_nothing_in_the_buffer_and_stays():
    """Python flushes standard streams at its end, and would complain."""
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        os.close(reader)
        before = os.readlink(f"/proc/self/fd/{writer}")
        output = Output(stream)
        output.write("lost")
        output.flush()
        assert isinstance(output.fault, BrokenPipeError)
        stream.flush()
        assert os.readlink(f"/proc/self/fd/{writer}") == before and not os.get_inheritable(writer)


def test_streams_share_one_output():
    output = Output(Failing(errno.ENOSPC))
    stream = for_messages(output)
    assert Output.of(stream) is Output.of(output) is output
    stream.write("lost")
    assert stream.fault is output.fault is not None


def test_nobody_writes_past_it():
    assert not hasattr(Output(io.TextIOWrapper(io.BytesIO())), "buffer"), "where click finds one it writes to it"


def test_a_standard_stream_that_was_closed_at_the_start_is_lost():
    output = Output(None)
    assert not output.isatty() and output.fault is None
    output.write("lost")
    assert output.cause == "Bad file descriptor"


@pytest.mark.parametrize(("terminal", "written"), [(True, r"a\x0d"), (False, "a\r")])
def test_data_are_escaped_on_a_terminal_only(terminal, written):
    stream = Failing(None, 1, terminal=terminal)
    for_data(stream).write("a\r")
    assert stream.getvalue() == written


def test_cells_are_measured_as_they_are_shown():
    stream = io.StringIO()
    table = Table("a\x1b", box=None, pad_edge=False)
    for cell in ("[b]\x9b2J", Text("c")):
        table.add_row(cell)
    Console(file=stream, width=40).print(table, Text("d\u202e"))
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == [r"a\x1b", r"[b]\u009b2J", "c", r"d\u202e"]


def test_closed_descriptors_are_occupied():
    kept = os.dup(0)
    try:
        os.close(0)
        occupy_descriptors()
        assert os.readlink("/proc/self/fd/0") == os.devnull and os.get_inheritable(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_a_line_is_written_at_once():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Escaped(Output(stream)).say("a\x07")
    assert stream.buffer.getvalue() == b"a\\x07\n"
