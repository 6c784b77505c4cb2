"""Machines in JSON files: loading returns what was saved; errors name damage."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import Cost, Drift, Link, Machine, Profile

SECONDS = st.floats(0, 1e6)
POSITIVE = st.floats(1e-9, 1e12)
NAMES = st.text(min_size=1, max_size=5).filter(lambda name: "/" not in name)

costs = st.builds(Cost, fixed=POSITIVE, per_example=SECONDS, per_nonzero=SECONDS)
drifts = st.builds(
    Drift,
    amplitude=st.floats(0, 0.99),
    period=POSITIVE,
    phase=st.floats(-10, 10),
)
links = st.builds(
    Link,
    latency=SECONDS,
    bandwidth=POSITIVE,
    topology=st.sampled_from(["ring", "tree", "central"]),
)
profiles = st.builds(
    Profile,
    name=st.text(max_size=5),
    kind=st.text(max_size=5),
    cost=costs,
    factor=POSITIVE,
    place=st.lists(NAMES, max_size=3).map(tuple),
    drift=st.none() | drifts,
    device=st.text(max_size=5),
    curve=st.just(()) | st.lists(POSITIVE, max_size=3).map(lambda c: (1.0, *c)),
)


@st.composite
def machines(draw):
    by_name = st.lists(profiles, min_size=1, max_size=4, unique_by=lambda p: p.name)
    workers = tuple(draw(by_name))
    places = {"/".join(w.place[:d]) for w in workers for d in range(len(w.place) + 1)}
    kept = draw(st.sets(st.sampled_from(sorted(places)))) | {""}
    return Machine(
        name=draw(st.text(max_size=5)),
        workers=workers,
        links={place: draw(links) for place in sorted(kept)},
        noise=draw(st.floats(0, 2)),
        seed=draw(st.integers(0, 2**70)),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("machines")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(machine=machines())
def test_round_trip(folder, machine):
    path = folder / "machine.json"
    machine.save(path)
    assert Machine.load(path) == machine


def damaged(path, change):
    """Write a machine of two workers after `change` of its JSON; return its path."""
    cost = Cost(1.0, 2.0)
    workers = (
        Profile("a", "gpu", cost),
        Profile("b", "gpu", cost, place=("n",), drift=Drift(0.5)),
    )
    machine = Machine(
        "m",
        workers,
        {"": Link(latency=1.0, bandwidth=2.0), "n": Link(latency=1.0, bandwidth=2.0)},
    )
    machine.save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def test_defaults_may_be_left_out(tmp_path):
    def change(data):
        del data["noise"], data["seed"], data["workers"][0]["drift"]
        del data["workers"][0]["cost"]["per_nonzero"]

    path = tmp_path / "m.json"
    expected = Machine.load(damaged(path, lambda data: None))
    assert Machine.load(damaged(path, change)) == expected


def test_whole_numbers_are_numbers(tmp_path):
    def change(data):
        data["workers"][0]["cost"]["fixed"] = 1

    fixed = Machine.load(damaged(tmp_path / "m.json", change)).workers[0].cost.fixed
    assert fixed == 1.0
    assert type(fixed) is float


def test_numbers_of_numpy_can_be_saved(tmp_path):
    cost = Cost(np.float32(0.5), np.float64(0.25))
    machine = Machine(
        "m",
        (Profile("a", "cpu", cost),),
        {"": Link(latency=np.int64(1), bandwidth=2.0)},
    )
    machine.save(tmp_path / "m.json")
    assert Machine.load(tmp_path / "m.json") == machine


def test_the_file_is_readable(tmp_path):
    path = damaged(tmp_path / "m.json", lambda data: None)
    Machine.load(path).save(path)
    assert '\n  "noise": 0.0,\n' in path.read_text()


def _set(data, *keys_and_value):
    *keys, last, value = keys_and_value
    for key in keys:
        data = data[key]
    data[last] = value


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (
            r"workers\[1\]\.cost: fixed='fast': pass a number of at least 0",
            lambda d: _set(d, "workers", 1, "cost", "fixed", "fast"),
        ),
        (
            r"workers\[1\]\.cost: fixed=True: pass a number",
            lambda d: _set(d, "workers", 1, "cost", "fixed", True),
        ),
        (
            r"workers\[1\]\.cost: fixed=None: pass a number",
            lambda d: _set(d, "workers", 1, "cost", "fixed", None),
        ),
        (
            r"workers\[1\]\.cost: fixed=<a int>: pass a number",
            lambda d: _set(d, "workers", 1, "cost", "fixed", 10**400),
        ),
        (
            r"workers\[1\]\.cost: fixed=-1.*: pass a number of at least 0",
            lambda d: _set(d, "workers", 1, "cost", "fixed", -1),
        ),
        (
            r"workers\[1\]\.cost: fixed=nan: pass a number of at least 0",
            lambda d: _set(d, "workers", 1, "cost", "fixed", float("nan")),
        ),
        (
            r"workers\[1\]\.cost\.fixd: unknown field; a Cost has the fields fixed, ",
            lambda d: _set(d, "workers", 1, "cost", "fixd", 1.0),
        ),
        (
            r"workers\[1\]\.cost\.fixed: missing; a Cost has the fields fixed, ",
            lambda d: d["workers"][1]["cost"].pop("fixed"),
        ),
        (
            r"workers\[1\]\.drift: period=\[\]: pass a number",
            lambda d: _set(d, "workers", 1, "drift", "period", []),
        ),
        (
            r"workers\[1\]\.place: expected a list, found \"n\"",
            lambda d: _set(d, "workers", 1, "place", "n"),
        ),
        (
            r"workers\[1\]: place=\(3,\): pass a sequence of strings",
            lambda d: _set(d, "workers", 1, "place", 0, 3),
        ),
        (
            r"workers\[0\]\.cost: expected an object \(a Cost\), found 1.0",
            lambda d: _set(d, "workers", 0, "cost", 1.0),
        ),
        (
            r"links\['n'\]\.latency: missing; a Link has the fields latency, ",
            lambda d: _set(d, "links", "n", {"bandwidth": 1.0}),
        ),
        (
            r"links\['n'\]: topology='star': choose one of ring",
            lambda d: _set(d, "links", "n", "topology", "star"),
        ),
        (r"links: expected an object, found \[\]", lambda d: _set(d, "links", [])),
        (r"workers: missing; a Machine has", lambda d: d.pop("workers")),
        (r"top level: a machine needs at least", lambda d: _set(d, "workers", [])),
        (r"top level: seed=1.5: pass a whole number", lambda d: _set(d, "seed", 1.5)),
        (r"top level: seed=-1: pass", lambda d: _set(d, "seed", -1)),
        (r"colour: unknown field; a Machine has", lambda d: _set(d, "colour", "red")),
    ],
)
def test_damage_is_named_with_file_and_place(tmp_path, message, change):
    path = damaged(tmp_path / "m.json", change)
    with pytest.raises(ValueError, match=r"m\.json: " + message):
        Machine.load(path)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (r"Expecting .*: line 2 column 1 \(char 2\)", b"{\n"),
        ("Expecting value: line 1", b""),
        ("can't decode byte 0xff", b"\xff\xfe"),
        (r"top level: expected an object \(a Machine\), found \[1\]", b"[1]"),
        ("the key 'name' appears twice", b'{"name": "a", "name": "b"}'),
        ("nested too deeply", b"[" * 100_000),
    ],
)
def test_a_file_that_is_not_a_machine(tmp_path, message, content):
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"m\.json: .*" + message):
        Machine.load(path)
