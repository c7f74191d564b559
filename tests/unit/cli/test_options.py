"""Quantities on the command line; and what the machine lacks is one sentence, while other errors remain tracebacks."""

from __future__ import annotations

import errno
import os

import click
import pytest
from click.testing import CliRunner

from singa_dask.cli.options import reports_errors
from singa_dask.cli.quantities import BANDWIDTH, LATENCY, SIZE, Counts, Names


def ran(error: BaseException):
    @click.command()
    @reports_errors
    def command() -> None:
        raise error

    return CliRunner().invoke(command)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "error: memory ran out. Use a smaller batchsize, fewer processes, or more memory."),
        (MemoryError("Unable to allocate 3.55 PiB"), "error: memory ran out (Unable to allocate 3.55 PiB). Use a"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b.h5"), "error: a/b.h5: its disk is full (No space left"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "a/b.h5"), "error: a/b.h5: its disk is full (Disk quota"),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), "error: the disk is full (File too large). Free space, or"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x"), "error: x: Too many open files. Raise the limit: "),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "error: Too many open files in system. Raise the limit: "),
    ],
)  # fmt: skip
def test_what_the_machine_lacks(error, says):
    done = ran(error)
    assert done.exit_code == 1 and done.stderr.startswith(says) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(errno.EIO, "Input/output error"), KeyError("x")])
def test_bugs_stay_visible(error):
    assert ran(error).exception is error


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BANDWIDTH, "1Gbit", 1e9),
        (BANDWIDTH, "2.5 gbit/s", 2.5e9),
        (LATENCY, "50us", 50e-6),
        (SIZE, "1GiB", 2**30),
        (Counts(), "8, 1,2", [1, 2, 8]),
        (Counts(), "1,...,1024", [2**i for i in range(11)]),
        (Counts(), "3,…,10", [3, 6, 10]),
        (Names(("a", "b")), "B,a", ("b", "a")),
        (Names(("a", "b")), (), ()),
    ],
)
def test_what_users_write_is_read(kind, text, value):
    assert kind.convert(text, None, None) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (BANDWIDTH, "1", "has no unit. Use Mbit, Gbit; for example 1Gbit."),
        (BANDWIDTH, "1GB", "unknown unit 'GB'"),
        (LATENCY, "-5us", "is not a positive number with a unit. For example 50us."),
        (LATENCY, "0us", "is not a positive number"),
        (SIZE, "8GB/s", "unknown unit"),
        (Counts(), "1,x", "'x' is not an integer from 1 on. For example 1,2,4,8"),
        (Counts(), "...,8", "'...' is not an integer"),
        (Counts(), "0", "'0' is not"),
        (Counts(), "1,...", "a number must follow the ellipsis"),
        (Names(("a", "b")), "c", "'c' is unknown. Valid: a, b."),
    ],
)
def test_what_is_wrong_is_named_with_an_example(kind, text, says):
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(text, None, None)
    assert says in caught.value.message
