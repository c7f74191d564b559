"""What the machine lacks is one sentence of the command, wherever it is missed; other errors remain tracebacks."""

from __future__ import annotations

import errno
import os

import click
import pytest
from click.testing import CliRunner

from singa_dask.cli.options import reports_errors


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
