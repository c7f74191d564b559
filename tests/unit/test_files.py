"""Opening files by name."""

import errno
import fcntl
import os

import pytest
from support.special_files import CALLED, put

from singa_dask import files
from singa_dask.files import NotAFile, kind_of, open_lock, read_text, regular, replacing, unlinked, write_whole

pytestmark = pytest.mark.timeout(20, method="signal")


@pytest.mark.parametrize("kind", CALLED)
def test_what_is_no_file_is_told(tmp_path, kind):
    path = put(kind, tmp_path / "there")
    assert kind_of(path) == CALLED[kind]
    with pytest.raises(NotAFile, match=f"it is {CALLED[kind]}, not a file") as caught:
        read_text(path)
    assert caught.value.kind == CALLED[kind] and caught.value.filename == str(path)


def test_nothing_and_links_are_told(tmp_path):
    (tmp_path / "lost").symlink_to("none")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    found = {name: kind_of(tmp_path / name) for name in ("none", "none/x", "lost", "link")}
    lost = "a symbolic link that leads to nothing"
    assert found == {"none": None, "none/x": None, "lost": lost, "link": files.FILE}
    assert kind_of(tmp_path / "link", follow=False) == files.LINK
    assert read_text(tmp_path / "link") == "text"
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none")


def test_text_has_a_limit_and_plain_line_ends(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(tmp_path / "text", "utf-8-sig") == "a\nb\nc\n"
    assert read_text(tmp_path / "text", "utf-8-sig", at_most=10)
    with pytest.raises(OSError, match="it is larger than 9 bytes") as caught:
        read_text(tmp_path / "text", at_most=9)
    assert caught.value.errno == errno.EINVAL


def test_what_comes_between_the_look_and_the_opening_is_refused(tmp_path, monkeypatch):
    put("fifo", tmp_path / "pipe")
    monkeypatch.setattr(files, "check_regular", lambda *_, **__: None)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotAFile, match="a pipe"):
        read_text(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links") as caught, open(tmp_path / "link", "w", opener=unlinked):
        pass
    assert caught.value.errno == errno.ELOOP and not (tmp_path / "file").exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_that_are_made_have_the_rights_that_the_user_wants(tmp_path):
    mask = os.umask(0o027)
    try:
        with open(tmp_path / "new", "w", opener=unlinked):
            pass
        write_whole(tmp_path / "whole", "text")
        os.close(open_lock(tmp_path / "lock", 0o600))
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"new": 0o640, "whole": 0o640, "lock": 0o600}


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(IsADirectoryError), replacing(path) as temporary:
        (tmp_path if temporary.write_text("half") else path).read_text()
    assert path.read_text() == "before" and [each.name for each in tmp_path.iterdir()] == ["file"]
    write_whole(path, "after")
    assert path.read_text() == "after" and [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_folder_is_not_replaced_and_a_pipe_is(tmp_path):
    with pytest.raises(NotAFile, match="a folder"):
        write_whole(put("folder", tmp_path / "folder"), "text")
    write_whole(put("fifo", tmp_path / "pipe"), "text")
    assert (tmp_path / "folder").is_dir() and (tmp_path / "pipe").read_text() == "text"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "pipe"]


def test_what_was_left_is_named_where_nobody_can_tell_whether_it_is_being_written(tmp_path, monkeypatch, caplog):
    left = tmp_path / ".file.0123.tmp"
    left.write_text("half")

    def refuses(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    write_whole(tmp_path / "file", "text")
    monkeypatch.undo()
    assert str(left) in caplog.text and left.exists()
    write_whole(tmp_path / "other", "text")
    assert left.exists(), "it is beside another file"
    write_whole(tmp_path / "file", "text")
    assert not left.exists()


def test_names_that_are_patterns_match_themselves_only(tmp_path):
    (tmp_path / ".a.0.tmp").write_text("of another")
    write_whole(tmp_path / "[ab]", "text")
    assert (tmp_path / ".a.0.tmp").exists()


def test_a_new_file_that_another_process_takes_for_left_is_made_again(tmp_path, monkeypatch):
    real = fcntl.flock

    def slow(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", real)
        files._remove_left(tmp_path / "file")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    with replacing(tmp_path / "file") as temporary:
        assert temporary.exists()
        files._remove_left(tmp_path / "file")
        assert temporary.exists()


def test_a_lock_is_made_once_and_keeps_its_contents(tmp_path):
    path = tmp_path / "lock"
    path.write_text("a note")
    os.close(open_lock(path))
    with open(path, "a", opener=regular) as file:
        file.write("!")
    assert path.read_text() == "a note!"
