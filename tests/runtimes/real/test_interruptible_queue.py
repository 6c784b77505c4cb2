"""The inbox of the wall clock: in order, never lost, also amid signals."""

import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetjax.runtimes.real.interruptible_queue import Empty, InterruptibleQueue


@given(st.lists(st.one_of(st.integers(), st.none())))
def test_items_come_in_order(moves):
    inbox, expected = InterruptibleQueue(), []
    for item in moves:
        if item is not None:
            inbox.put(item)
            expected.append(item)
        elif expected:
            assert inbox.get() == expected.pop(0)
        else:
            with pytest.raises(Empty):
                inbox.get()
        assert inbox.empty() == (not expected)


def test_a_waiting_thread_is_woken():
    inbox = InterruptibleQueue()
    for _ in range(50):
        thread = threading.Thread(target=inbox.put, args=(1,))
        thread.start()
        assert inbox.get(timeout=60) == 1
        thread.join()


@pytest.fixture
def _slow_handler():
    """A signal that comes before the timeout, and is handled after it."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: time.sleep(0.1))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_slow_handler")
def test_a_signal_amid_the_wait_does_not_make_it_endless():
    inbox = InterruptibleQueue()
    # where it would never end, this item ends it
    rescue = threading.Timer(20, inbox.put, args=("it waited for ever",))
    rescue.start()
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    with pytest.raises(Empty):
        inbox.get(timeout=0.05)
    rescue.cancel()
