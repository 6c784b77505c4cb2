"""Measured rounds of a trace: their seconds, and the load during each."""

from hetjax.tracing.measured_rounds import SKIPPED_ROUNDS, measured_rounds
from hetjax.tracing.trace import Trace

GIVEN = {
    "local_steps": 2,
    "batch_size": 3.6,
    "lr_scale": 1.0,
    "seconds": 0.25,
    "nonzeros": 5,
}


def lines_of(*spans):
    """The lines of rounds (worker, start, finish), in the order of their arrivals."""
    lines = []
    for k, start, finish in spans:
        lines.append({"dispatch": k, "start": start, **GIVEN})
        lines.append({"arrival": k, "start": start, "finish": finish})
    return lines


WARM_UP = lines_of(
    *((k, k - 9.0, k - 8.0) for k in (0, 1) for _ in range(SKIPPED_ROUNDS))
)


def measured(*spans, slowdowns=(1.0, 1.0), bursts=(False,) * 3):
    return measured_rounds(Trace({}, WARM_UP + lines_of(*spans)), slowdowns, bursts)


def test_a_round_is_measured_with_its_share_of_company():
    """Worker 1 computes from 1 to 2 s and from 3 to 5 s, worker 0 from 0 to 4 s."""
    local_rounds = measured((1, 1.0, 2.0), (0, 0.0, 4.0), (1, 3.0, 5.0))
    assert [(w.worker, w.seconds, w.share) for w in local_rounds] == [
        (1, 0.75, 1.0),  # without the copy's 0.25 s
        (0, 3.75, 0.5),
        (1, 1.75, 0.5),
    ]
    assert {(w.local_steps, w.examples, w.nonzeros) for w in local_rounds} == {
        (2, 8, 5)
    }


def test_a_resting_worker_is_less_company():
    """Worker 1 is deliberately slowed down: it computes for one of its two seconds."""
    local_rounds = measured((1, 1.0, 3.0), (0, 0.0, 4.0), slowdowns=(1.0, 2.0))
    expected = [(1.75 / 2, 1.0), (3.75, 0.5 / 2)]
    assert [(w.seconds, w.share) for w in local_rounds] == expected


def test_a_worker_that_rests_after_its_round_is_company_before():
    """It computes from 1 to 2 s, and rests for another second."""
    spans = ((1, 1.0, 3.0), (0, 0.0, 2.0), (0, 2.0, 3.0))
    local_rounds = measured(*spans, slowdowns=(1.0, 2.0), bursts=(False, True))
    assert [(w.worker, w.share) for w in local_rounds] == [(1, 1.0), (0, 0.5), (0, 0.0)]


def test_company_is_a_share_of_all_the_others():
    """Worker 2 never computes: worker 1 alone is at most a half."""
    local_rounds = measured((0, 0.0, 4.0), (1, 0.0, 4.0), slowdowns=(1.0,) * 3)
    assert [w.share for w in local_rounds] == [0.5, 0.5]


def test_the_first_rounds_do_not_count():
    assert measured() == []
    assert len(measured((0, 0.0, 1.0))) == 1


def test_rounds_without_steps_are_not_measured():
    fetch = {"dispatch": 0, "start": 0.0, **GIVEN, "local_steps": 0}
    arrival = {"arrival": 0, "start": 0.0, "finish": 0.25}
    trace = Trace({}, [*WARM_UP, fetch, arrival])
    assert measured_rounds(trace, (1.0, 1.0), (False, False)) == []


def test_a_round_that_never_arrived_is_not_measured():
    """Worker 0 is lost in its first round; the end of the run interrupts its third."""
    lost = {"dispatch": 0, "start": 1.0, **GIVEN}
    trace = Trace({}, [*WARM_UP, lost, *lines_of((0, 5.0, 6.0)), lost])
    assert [w.seconds for w in measured_rounds(trace, (1.0, 1.0), (False, False))] == [
        0.75
    ]
