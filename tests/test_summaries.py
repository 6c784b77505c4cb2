"""What a person sees of an object: two lines of text, and the same as HTML."""

import jax.numpy as jnp
import pytest

import hetjax as hj

DATA = hj.data.digits()
TASK = hj.classification(hj.models.sparse_mlp(hidden=8), DATA)
SHOWN = {
    "data": (DATA, ["digits", "1,438 training", "10 classes", "x [1438, 64] float32"]),
    "task": (TASK, ["accuracy, larger is better", "610 parameters in 4 arrays"]),
    "own task": (
        hj.task(hj.from_functions(lambda k: jnp.ones(3), jnp.dot), lambda z, y: z - y),
        ["loss, smaller is better", "3 parameters in 1 array of float32"],
    ),
    "machine": (hj.machine.preset("v100x4"), ["v100x4: 4 simulated", "1.32 times as"]),
    "real machine": (
        hj.local_machine(["cpu:0"], workers_per_device=2, slowdown={"cpu:0/1": 2.0}),
        ["2 real workers", "cpu:0/1 (cpu) slowed 2 times"],
    ),
    "policy": (hj.schedule.rounds(batch_size=4), ["Policy rounds", "bulk-synchronous"]),
    "merge": (hj.merge.fed_acc(), ["Merge fed_acc", "weights by accuracy"]),
    **{
        name: (make(batch_size=8, learning_rate=0.1), [f"Strategy {name}(", "merge "])
        for name, make in hj.STRATEGIES.items()
        if name != "slide"
    },
}


@pytest.mark.parametrize("name", SHOWN)
def test_two_lines_say_what_it_is(name):
    value, parts = SHOWN[name]
    lines = repr(value).split("\n")
    assert len(lines) == 2
    assert all(len(line) <= 205 for line in lines)
    assert " at 0x" not in repr(value)  # no addresses
    for part in parts:
        assert part in repr(value)
    assert parts[0] in value._repr_html_()
    assert value._repr_html_().startswith("<div>")


def test_html_is_escaped():
    data = hj.data.from_arrays(
        (DATA.train.x, DATA.train.y), (DATA.test.x, DATA.test.y), name="<a & b>"
    )
    assert "&lt;a &amp; b&gt;" in data._repr_html_()


def test_an_error_that_shows_an_object_is_one_line():
    with pytest.raises(ValueError, match="machine is .*pass a Machine") as caught:
        hj.train(TASK, DATA, TASK, SHOWN["sma"][0], seconds=1.0)
    assert "\n" not in str(caught.value)
