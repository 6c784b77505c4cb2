"""How often XLA compiles: few programs, and none if only the data differ."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest
from compile_events import compile_events
from quick import quick
from tiny_runs import averaging, counting_data, counting_task, machine, silent, train

import hetjax as hj
from hetjax import sparse as sparse_ops
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.engine.programs.compilations import Compilations, FirstCalls
from hetjax.engine.programs.task_programs import Programs

B_MAX = 64


def sweeping(**fields):
    """Adaptive SGD whose batch sizes walk through all of b_max ... b_max / 8."""
    sizes = itertools.cycle([*range(B_MAX, B_MAX // 8 - 1, -1)])

    def scaling(old, updates):
        return (float(next(sizes)),) * len(old)

    policy = hj.schedule.mega_batch(examples=B_MAX, batch_size=B_MAX, scaling=scaling)
    return hj.adaptive_sgd(batch_size=B_MAX, learning_rate=0.1)._replace(
        policy=policy, **fields
    )


def dense():
    return counting_task(), counting_data(256)


def sparse():
    data = hj.data.synthetic_xmc(
        rows=256, test_rows=20, features=60, labels=8, nonzeros=6.0, labels_per_row=2.0
    )
    model = hj.from_functions(
        lambda key: {"w": jnp.zeros((60, 8))},
        lambda params, x: sparse_ops.matmul(x, params["w"]),
        row_params=("w",),
    )
    return hj.classification(model, data), data


def run(session, strategy, seed=0):
    jax.random.key(0)  # JAX compiles its own programs for keys once in a process
    with compile_events() as events:
        history = session.run(strategy.name, strategy, seed, silent())
    assert history.compilations == sum(history.programs.values()) == len(events)
    return history


def session(problem=dense, seconds=30.0, **settings):
    return Session(
        *problem(),
        machine(1.0, 1.5, 2.0),
        RunConfig(seconds=seconds, num_evals=2, **settings),
    )


PLAYERS = pytest.mark.parametrize("compiled", [False, True])


def check_few(history):
    """A step program for each of several buckets, or few programs of stretches."""
    if history.played == "compiled":
        assert set(history.programs) <= {"init", "stretch", "evaluate"}
        assert 1 <= history.programs["stretch"] <= 2
        assert history.programs["evaluate"] == 2  # the model, and its metrics
    else:
        assert 1 < history.programs["step"] <= 14


@PLAYERS
@pytest.mark.parametrize("problem", quick([dense, sparse], dense))
def test_sizes_between_an_eighth_and_all_of_b_max_share_few_programs(problem, compiled):
    history = run(session(problem, seconds=220.0, compiled=compiled), sweeping())
    assert history.merges > B_MAX  # every size occurs at least once
    sizes = {b for w in history.workers for _, b in w.batch_size_over_time}
    assert sizes == set(map(float, range(B_MAX // 8, B_MAX + 1)))
    check_few(history)


@PLAYERS
def test_adaptive_sgd_itself(compiled):
    """One of four workers is eight times as slow: its batch size falls to the bound."""
    one = session(seconds=60.0, compiled=compiled)
    one.machine = machine(1.0, 1.0, 1.0, 8.0)
    strategy = hj.adaptive_sgd(
        batch_size=B_MAX, learning_rate=0.1, mega_batch=16 * B_MAX, bound="clip"
    )
    history = run(one, strategy)
    sizes = [b for w in history.workers for _, b in w.batch_size_over_time]
    assert (min(sizes), max(sizes)) == (B_MAX / 8, B_MAX)
    check_few(history)


def test_strategies_with_one_local_rule_share_step_programs():
    one = session(compiled=False)
    first = run(one, hj.elastic_sgd(batch_size=B_MAX, learning_rate=0.1, local_steps=1))
    second = run(one, hj.sequential_sgd(batch_size=B_MAX, learning_rate=0.1))
    assert first.programs["step"] == 1
    assert "step" not in second.programs
    # SMA stores the parameters before each step, so its step is another program
    assert run(one, hj.sma(batch_size=B_MAX, learning_rate=0.1)).programs["step"] == 1


STRATEGIES = {
    "sequential_sgd": hj.sequential_sgd(
        batch_size=B_MAX, learning_rate=0.1, momentum=0.5
    ),
    "sync_sgd": hj.sync_sgd(batch_size=B_MAX, learning_rate=0.1),
    "elastic_sgd": hj.elastic_sgd(batch_size=B_MAX, learning_rate=0.1, local_steps=2),
    "sma": hj.sma(batch_size=B_MAX, learning_rate=0.1),
    "adaptive_sgd": hj.adaptive_sgd(
        batch_size=B_MAX, learning_rate=0.1, mega_batch=4 * B_MAX
    ),
}


@PLAYERS
@pytest.mark.parametrize("name", STRATEGIES)
def test_another_seed_or_learning_rate_compiles_nothing(name, compiled):
    one, strategy = session(compiled=compiled), STRATEGIES[name]
    first = run(one, strategy)
    assert first.programs["stretch" if compiled else "step"] >= 1
    assert run(one, strategy, seed=1).programs == {}
    assert run(one, strategy._replace(learning_rate=0.7)).programs == {}


def test_another_size_of_the_same_bucket_compiles_nothing_in_a_compiled_run():
    """Batches are padded to 64, 32, ... there."""
    one = session(compiled=True)
    run(one, averaging(batch_size=64))
    same = averaging(batch_size=33)._replace(batch_size=64)
    other = averaging(batch_size=32)._replace(batch_size=64)
    assert run(one, same).programs == {}
    assert run(one, other).programs == {"stretch": 1}


def test_another_size_of_the_same_bucket_compiles_nothing():
    """The buckets up to 64 are ... 42, 52, 64."""
    one = session(compiled=False)
    run(one, averaging(batch_size=64))
    same = averaging(batch_size=53)._replace(batch_size=64)
    other = averaging(batch_size=52)._replace(batch_size=64)
    assert "step" not in run(one, same).programs
    assert run(one, other).programs["step"] == 1


@pytest.fixture
def listening(monkeypatch):
    """The currently registered listeners to JAX's events, of those added since."""
    now = []
    register = jax.monitoring.register_event_duration_secs_listener
    unregister = jax.monitoring.unregister_event_duration_listener

    def registering(listener):
        register(listener)
        now.append(listener)

    def unregistering(listener):
        unregister(listener)
        now.remove(listener)

    monkeypatch.setattr(
        jax.monitoring, "register_event_duration_secs_listener", registering
    )
    monkeypatch.setattr(
        jax.monitoring, "unregister_event_duration_listener", unregistering
    )
    return now


def test_no_listener_is_left_after_a_run(listening):
    heard = []
    options = {"on_eval": lambda point: heard.append(len(listening))}
    train(machine(1.0, 2.0), averaging(), 4.0, **options)
    assert heard == [1, 1]
    assert listening == []


def test_no_listener_is_left_after_an_error(listening):
    def fail(point):
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        train(machine(1.0, 2.0), averaging(), 4.0, on_eval=fail)
    assert listening == []


def test_a_program_compiled_after_counting_is_not_counted():
    compilations = Compilations()
    with compilations.counting():
        compilations.purpose = "inside"
        jax.jit(lambda x: x + 1)(1.0)
    seconds = compilations.seconds
    jax.jit(lambda x: x + 2)(1.0)
    assert compilations.programs == {"inside": 1}
    assert compilations.seconds == seconds > 0


class Meeting:
    """A program whose first calls last until the test releases them."""

    def __init__(self, parties):
        self.barrier = threading.Barrier(parties, timeout=10)
        self.calls, self.met, self.traced = [], False, 0

    def trace(self, x):
        self.traced += 1

    def __call__(self, x):
        self.calls.append(x)
        if not self.met:
            self.barrier.wait()
            self.met = True
        return 2 * x


def calling(calls, counts, program, device, results):
    def run():
        results.append(calls.call(program, device, "shapes", (3,), counts))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_worker_that_waits_for_another_s_program_is_compiling():
    """Its waiting time counts as compiling; the program is called once more."""
    counts, calls, results = Compilations(), FirstCalls(), []
    program = Meeting(parties=2)  # the first thread and this thread
    first = calling(calls, counts, program, "here", results)
    while not program.calls:
        time.sleep(1e-3)
    second = calling(calls, counts, program, "here", results)
    while not counts.is_compiling(second):
        time.sleep(1e-3)
    assert not counts.is_compiling(first)
    assert len(program.calls) == 1
    program.barrier.wait()
    for thread in (first, second):
        thread.join(timeout=10)
    assert results == [6, 6]
    assert len(program.calls) == 2
    assert program.traced == 1
    assert not counts.is_compiling(second)


def test_programs_of_different_devices_are_compiled_side_by_side():
    """From one jaxpr, because JAX loses one of two jaxprs traced at once."""
    counts, calls, results = Compilations(), FirstCalls(), []
    program = Meeting(parties=2)  # each waits for the other
    threads = [calling(calls, counts, program, k, results) for k in ("here", "there")]
    for thread in threads:
        thread.join(timeout=10)
    assert results == [6, 6]
    assert program.traced == 1


def test_threads_that_make_a_program_at_once_get_the_same():
    """Else one of them compiles a program that is never called again."""
    programs, both = Programs(counting_task()), threading.Barrier(2, timeout=10)

    def make():
        both.wait()
        return object()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: programs.once("key", make), range(2))
    assert first is second is programs.once("key", make)


def test_seconds_in_which_several_threads_compile_count_once(monkeypatch):
    """By hand: [1, 3] and [2, 4], then [5, 6], then [4.5, 7], which contains it."""
    counts, phase = Compilations(), "/jax/core/compile/jaxpr_trace_duration"
    seconds = []
    for start, end in ((1.0, 3.0), (2.0, 4.0), (5.0, 6.0), (4.5, 7.0)):
        monkeypatch.setattr(time, "perf_counter", lambda end=end: end)
        counts._listen(phase, end - start)
        seconds.append(counts.seconds)
    assert seconds == [2.0, 3.0, 4.0, 5.5]
    assert counts.own_seconds == 7.5  # this thread's own are a plain sum
