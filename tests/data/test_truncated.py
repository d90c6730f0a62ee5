import threading

import pytest
from PIL import ImageFile

from softvq.data.truncated import refusing_truncated


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


@pytest.mark.usefixtures("switched_on")
def test_the_switch_is_off_inside_and_back_after_an_error():
    seen = []
    with pytest.raises(ZeroDivisionError), refusing_truncated():
        seen.append(1 / int(ImageFile.LOAD_TRUNCATED_IMAGES))
    assert ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.usefixtures("switched_on")
def test_the_last_reader_to_leave_puts_it_back():
    inside, leave = threading.Event(), threading.Event()

    def read():
        with refusing_truncated():
            inside.set()
            leave.wait(10)

    with refusing_truncated():
        thread = threading.Thread(target=read)
        thread.start()
        assert inside.wait(10)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    leave.set()
    thread.join()
    assert ImageFile.LOAD_TRUNCATED_IMAGES
