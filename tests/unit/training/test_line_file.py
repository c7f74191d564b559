"""Lines wait in memory while the disk is full."""

import builtins
import errno

import pytest

from singa_dask.training.line_file import LineFile


@pytest.fixture
def disk(monkeypatch):
    """The disk; `disk.full = True` lets files take three more characters and no more."""
    real = builtins.open

    class Disk:
        full = False

    class File:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        def write(self, text):
            written = self.file.write(text[:3] if Disk.full else text)
            if Disk.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return written

    def opened(path, mode="r", **options):
        file = real(path, mode, **options)
        return File(file) if "a" in mode else file

    monkeypatch.setattr("singa_dask.training.line_file.open", opened, raising=False)
    return Disk


def numbers(lines):
    return [row["n"] for row in lines.rows()]


def test_lines_that_cannot_be_written_come_later_and_in_order(tmp_path, disk):
    lines = LineFile(tmp_path / "lines.jsonl")
    lines.append({"n": 1})
    disk.full = True
    lines.append({"n": 2})
    lines.append({"n": 3})
    assert lines.fault.errno == errno.ENOSPC and numbers(lines) == [1, 2, 3]
    assert numbers(LineFile(lines.path)) == [1], "half a line does not stay"
    disk.full = False
    lines.append({"n": 4})
    assert lines.fault is None and numbers(LineFile(lines.path)) == [1, 2, 3, 4]


def test_lines_that_are_replaced_while_the_disk_is_full_are_replaced_later(tmp_path, disk, monkeypatch):
    lines = LineFile(tmp_path / "lines.jsonl")
    for n in range(3):
        lines.append({"n": n})
    real = type(lines.path).write_text
    monkeypatch.setattr(type(lines.path), "write_text", lambda *_: (_ for _ in ()).throw(OSError("full")))
    lines.replace([{"n": 0}])
    lines.append({"n": 7})
    assert numbers(lines) == [0, 7] and numbers(LineFile(lines.path)) == [0, 1, 2]
    monkeypatch.setattr(type(lines.path), "write_text", real)
    lines.write()
    assert lines.fault is None and numbers(LineFile(lines.path)) == [0, 7]
    assert [path.name for path in tmp_path.iterdir()] == ["lines.jsonl"]


def test_a_line_that_is_too_long_is_left_out_whatever_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr("singa_dask.training.line_file.MAX_LINE_NBYTES", 20)
    path = tmp_path / "lines.jsonl"
    lengths = (19, 20, 21, 39, 40, 41, 60)  # with the line's end
    path.write_text("".join('{"n": %d}'.ljust(each - 1) % each + "\n" for each in lengths))
    rows, faults = LineFile(path).read()
    assert [row["n"] for row in rows] == [19, 20]
    assert faults == [f"{path}: line 3 and 4 more are damaged, and left out"]
    with open(path, "a") as file:
        file.write(" " * 50)
    assert len(LineFile(path).read()[0]) == 2


def test_half_a_last_line_is_passed_over(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"n": 1}\n{"n"')
    assert numbers(LineFile(path)) == [1] and list(LineFile(tmp_path / "none").rows()) == []
