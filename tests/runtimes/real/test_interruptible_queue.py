"""The queue of the wall clock: in order, without losses, interruptible by signals."""

import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetjax.runtimes.real.interruptible_queue import Empty, InterruptibleQueue


@given(st.lists(st.one_of(st.integers(), st.none())))
def test_items_come_in_order(moves):
    items, expected = InterruptibleQueue(), []
    for item in moves:
        if item is not None:
            items.put(item)
            expected.append(item)
        elif expected:
            assert items.get() == expected.pop(0)
        else:
            with pytest.raises(Empty):
                items.get()
        assert items.empty() == (not expected)


def test_a_waiting_thread_is_woken():
    items = InterruptibleQueue()
    for _ in range(50):
        thread = threading.Thread(target=items.put, args=(1,))
        thread.start()
        assert items.get(timeout=60) == 1
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
    items = InterruptibleQueue()
    # where it would never end, this item ends it
    rescue = threading.Timer(20, items.put, args=("it waited for ever",))
    rescue.start()
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    with pytest.raises(Empty):
        items.get(timeout=0.05)
    rescue.cancel()
