from pathlib import Path

import pytest

from softvq.files import replacing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_takes_its_name_when_it_is_whole(tmp_path):
    target = tmp_path / "a" / "b" / "codes.bin"
    with replacing(target) as beside:
        beside.write_bytes(b"half")
        assert beside.parent == target.parent
        assert not target.exists()
    assert target.read_bytes() == b"half"
    assert names(target.parent) == ["codes.bin"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_what_breaks_off_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = tmp_path / "codes.bin"
    target.write_bytes(b"old")

    def write():
        with replacing(target) as beside:
            beside.write_bytes(b"new, but not all of it")
            raise error

    with pytest.raises(error):
        write()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["codes.bin"]


def test_what_breaks_off_before_writing_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="early"), replacing(tmp_path / "a"):
        raise RuntimeError("early")
    assert names(tmp_path) == []


def test_an_old_file_is_replaced(tmp_path):
    target = tmp_path / "codes.bin"
    target.write_bytes(b"old and longer")
    with replacing(str(target)) as beside:
        beside.write_bytes(b"new")
    assert target.read_bytes() == b"new"


def test_nothing_written_is_an_error(tmp_path):
    target = tmp_path / "codes.bin"
    target.write_bytes(b"old")
    with pytest.raises(FileNotFoundError, match="partial"), replacing(target):
        pass
    assert target.read_bytes() == b"old"


def test_two_writers_do_not_share_a_path(tmp_path):
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as two:
        assert one != two
        one.write_bytes(b"1")
        two.write_bytes(b"2")
    assert names(tmp_path) == ["a"]
    assert Path(tmp_path / "a").read_bytes() == b"1"
