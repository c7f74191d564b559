"""Lines wait in memory while the disk is full."""

import errno

from support.limits import small_disk

from singa_dask.training.line_file import LineFile


def numbers(lines):
    return [row["n"] for row in lines.rows()]


def test_lines_that_cannot_be_written_come_later_and_in_order(tmp_path):
    lines = LineFile(tmp_path / "lines.jsonl")
    lines.append({"n": 1})
    with small_disk(lines.path.stat().st_size + 3):
        for n in (2, 3):
            lines.append({"n": n})
    assert lines.fault.errno == errno.EFBIG and numbers(lines) == [1, 2, 3]
    assert numbers(LineFile(lines.path)) == [1], "half a line does not stay"
    lines.append({"n": 4})
    assert lines.fault is None and numbers(LineFile(lines.path)) == [1, 2, 3, 4]


def test_lines_that_are_replaced_while_the_disk_is_full_are_replaced_later(tmp_path):
    lines = LineFile(tmp_path / "lines.jsonl")
    for n in range(3):
        lines.append({"n": n})
    with small_disk(3):
        lines.replace([{"n": 0}])
        lines.append({"n": 7})
    assert numbers(lines) == [0, 7] and numbers(LineFile(lines.path)) == [0, 1, 2]
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
