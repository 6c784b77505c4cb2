"""The oracles of the newer algorithms against numbers that were computed by hand."""

import fragments_oracle as pieces
import gradient_server_oracle as gradients
import numpy as np
import pytest
from async_outer_oracle import aligned, steps_by_speed
from compression_oracle import compressed
from fragments_oracle import Syncer, closing, packed, radial_direction
from new_case import replay
from new_cases import CASES
from second_vectors import CLOCK, VECTORS
from vector_world import Workers

ATOL = 1e-6  # the vectors have six decimals


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name):
    vector = VECTORS[name]
    server = vector.run()
    close(server.center, vector.center)
    if vector.reports:
        said = " ".join(f"{t:g}/{i}" for t, i in server.workers.reports)
        assert said == vector.reports
    for i, model in vector.given.items():
        close(server.given[i], model)
    for key, wanted in vector.more.items():
        found = server.more.get(key, getattr(server, key, None))
        pairs = [(found, wanted)]
        if isinstance(wanted, list):
            pairs = zip(found, wanted, strict=True)
        for one, other in pairs:
            if other is not None:
                close(one, other)


@pytest.mark.parametrize(
    ("momentum", "corrected"),
    [
        ((1, 1), (3, 4)),
        ((-2, 1), (2.969443, 4.015279)),
        ((-4, -1), (2.579454, 3.894863)),
        ((-4, 4), (2.016570, 4.575308)),
    ],
)
def test_a_tensor_is_aligned(momentum, corrected):
    close(aligned(np.array([3.0, 4.0]), np.array(momentum, float)), corrected)


def test_steps_by_speed():
    assert steps_by_speed(CLOCK, 7) == [7, 4, 2]
    assert steps_by_speed((3.0, 3.0), 5) == [5, 5]
    assert steps_by_speed((1.0, 100.0), 5) == [5, 1]


def compress(x, lengths, **settings):
    ends = np.cumsum([0, *lengths])
    tensors = [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]
    value, _, size = compressed(np.array(x, float), tensors, **settings)
    return value, size


COMPRESSED = {
    "int8, largest of two": (
        (0.5, -2, 1, 0, 3, -3, 0.1),
        (5, 2),
        {"exchange": "int8", "top_k": 1, "chunk": 2},
        (0, -2.007874, 0.992126, 0, 3, -3, 0),
        14,
    ),
    "int4": (
        (1, -0.3, 0.06, 0),
        (4,),
        {"exchange": "int4"},
        (1, -0.285714, 0, 0),
        2 + 4,
    ),
    "bf16": (
        (1, -0.3, 0.06, 0),
        (4,),
        {"exchange": "bf16"},
        (1, -0.300781, 0.060059, 0),
        8,
    ),
    "stat2": (
        (1, -2, 0.5, 3),
        (4,),
        {"exchange": "stat2"},
        (0.75, -2, 0.75, 3),
        1 + 4 + 16,
    ),
    "e3m0": (
        (2, -0.6, 0.12, 0.024, 0.016, 0),
        (6,),
        {"exchange": "e3m0"},
        (2, -0.5, 0.125, 0.03125, 0, 0),
        3 + 4,
    ),
    "ties: the lower index": (
        (1, -1, 1, 2),
        (4,),
        {"top_k": 2, "chunk": 3},
        (1, -1, 0, 2),
        13,  # three numbers of 32 + 2 bits
    ),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compression(name):
    x, lengths, settings, value, size = COMPRESSED[name]
    found = compress(x, lengths, **settings)
    close(found[0], value)
    assert found[1] == size


@pytest.mark.parametrize(
    ("average", "center"),
    [("mean", (0.024868, 0.572710)), ("rda", (-0.073567, 0.315429))],
)
def test_a_syncer_weighs_by_tokens(average, center):
    workers = Workers((1.0, 1.0), 0.0)
    syncer = Syncer(workers, learning_rate=0.5, average=average, tokens=(4, 6))

    def merge(take):
        for m in (0, 1):
            syncer.answer(m, 0)
        syncer.merge(0)
        for m in take:
            syncer.take(m, 0)

    syncer.work(0, workers.draw(0, 2))
    syncer.work(1, workers.draw(1, 1))
    merge(take=(0,))
    syncer.work(0, workers.draw(0, 1))
    merge(take=())
    close(syncer.weights, [(0.470588, 0.529412), (0.307692, 0.692308)])
    close(syncer.server.center, center)


def test_radial_direction():
    deltas = [np.array([3.0, 4.0]), np.array([0.0, 2.0])]
    close(radial_direction(deltas, (0.25, 0.75)), (0.428897, 2.716348))
    close(radial_direction(deltas[:1], (1.0,)), deltas[0])
    zero = np.zeros(2)
    close(radial_direction([zero, deltas[1]], (0.5, 0.5)), (0, 1))
    opposed = [deltas[1], -2 * deltas[1]]  # y = 0: the mean
    close(radial_direction(opposed, (0.5, 0.5)), (0, -1))


def test_a_request_closes_after_its_grace():
    assert closing((3, 1, None, 4.5), quorum=2, grace=2) == ([0, 1, 3], 5)
    assert closing((3, 1), quorum=1, grace=9) == ([0, 1], 3)
    assert closing((3, 1, 3.5), quorum=1, grace=2) == ([0, 1], 3)


def test_fragments_are_packed():
    assert packed((3, 8, 4, 3, 1), 2) == [[1, 4], [0, 2, 3]]
    assert packed((2, 2, 2), 1) == [[0, 1, 2]]


def test_the_times_of_a_syncers_merges():
    """2/0 and 3/1 answer until 3.5; 4/0 until 5.5; then all answer by 7."""
    workers = Workers(CLOCK, 7.6)
    settings = {"learning_rate": 0.5, "local_steps": 1, "quorum": 1, "grace": 1.5}
    server = pieces.decoupled_diloco(workers, **settings)
    assert [time for time, _ in server.centers] == [3.5, 5.5, 7.0]
    assert [len(own) for own in server.entered] == [3, 2, 1]
    assert server.down == [16, 8, 8]  # at 4, 6; at 6; at 7


def test_a_report_of_ringleaders_second_table_is_not_lost():
    """Only worker 0's gradients are not 0: they are 0, 1, 2, ..., one each second.

    Steps at 7/2 (mean of 0 to 6), 8/0, 9/1 (0 to 7); the one at 9/0 enters the second
    table, which is full at 14/2 (mean of 8 to 13).
    """

    def gradient(worker, t, x):
        return np.array([float(t) if worker == 0 else 0.0])

    workers = Workers((1.0, 3.0, 7.0), 14.5, gradient, np.zeros(1))
    server = gradients.ringleader_asgd(workers, learning_rate=1.0)
    close(server.center, [-(3 + 3.5 + 3.5 + 10.5) / 3])


# The cases of whole runs


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_at_no_discontinuity(name):
    """Thresholds, ranks and roundings do not depend on rounding errors."""
    case = CASES[name]
    exact, near = replay(case), replay(case, noise=1e-6)
    assert exact.workers.reports == near.workers.reports
    scale = max(1.0, np.abs(exact.center).max())
    assert np.abs(exact.center - near.center).max() < 1e-4 * scale
    assert np.abs(exact.center - exact.workers.start).max() > 0.05  # it moved
    assert np.abs(exact.center).max() < 20  # and did not diverge
