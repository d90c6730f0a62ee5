import os
import signal
import threading

import pytest

from train.interrupt import NOTE, noting_interrupts


def press():
    signal.raise_signal(signal.SIGINT)


def test_the_first_is_noted_and_told(capfd):
    with noting_interrupts() as interrupted:
        assert not interrupted()
        press()
        assert interrupted()
    assert capfd.readouterr().err.encode() == NOTE


def test_the_second_stops_at_once(capfd):
    with noting_interrupts():
        press()
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_scheduler_that_takes_the_machine_back_is_heard(capfd):
    with noting_interrupts() as interrupted:
        signal.raise_signal(signal.SIGTERM)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_one_of_each_is_what_torchrun_sends_and_stops_nothing_at_once(capfd):
    with noting_interrupts() as interrupted:
        press()
        signal.raise_signal(signal.SIGTERM)
        assert interrupted()
    assert capfd.readouterr().err.encode() == NOTE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_afterwards_all_is_as_before(number):
    before = signal.getsignal(number)
    with noting_interrupts():
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before


def test_also_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), noting_interrupts():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_get_no_signals():
    found = []

    def work():
        with noting_interrupts() as interrupted:
            found.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_signal_of_another_process_counts(capfd):
    with noting_interrupts() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
