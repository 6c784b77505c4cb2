"""Settings of the newer strategies that do not fit: one line each, before a run."""

import optax
import pytest
import tiny_runs
import vector_task

import hetjax as hj
from hetjax import schedule

MIXED = vector_task.PROBLEMS["mixed"]
MACHINE = (1.0, 2.0, 3.0)
BOTH = {"batch_size": 1, "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("decoupled_diloco", {"quorum": 4}, "quorum"),
        ("sparse_loco", {"top_k": 0}, "top_k=0: pass a whole number"),
        ("streaming_diloco", {"fragments": 5, "local_steps": 8}, "at most 4 fragments"),
        ("streaming_diloco", {"delay": 64}, "delay"),
        ("delayed_nesterov", {"every": 3, "spread": 0.5}, "spread=0.5 is above 1 / ev"),
        ("fed_buff", {"buffer_size": 0}, "buffer_size=0: pass a whole number"),
        (
            "diloco",
            {"outer_optimizer": optax.sgd(1.0), "outer_learning_rate": 0.3},
            "or an outer_optimizer, not both",
        ),
        ("ringmaster_asgd", {"max_delay": 0}, "max_delay=0: pass"),
        ("rennala_sgd", {"batches": 0}, "batches=0: pass a whole number"),
        ("rennala_sgd", {"stop": "wait"}, "stop='wait': choose one of"),
        ("async_diloco", {"grace": -1.0}, "grace=-1.0: pass a number"),
        ("fed_opt", {"server": "sgd"}, "server='sgd': choose one of"),
        ("mla", {"local_steps": "measured:"}, "local_steps='measured:': pass a number"),
    ],
)
def test_refusals(name, wrong, message):
    def run():
        strategy = getattr(hj, name)(**BOTH, **wrong)
        vector_task.run(strategy, MIXED, MACHINE, 3.5)

    with pytest.raises(ValueError, match=message) as caught:
        run()
    assert "\n" not in str(caught.value)


def test_a_policy_that_names_parts_needs_a_merge_with_them():
    policy = schedule.streaming(batch_size=1, local_steps=2, fragments=2, delay=0)
    strategy = hj.diloco(**BOTH, local_steps=2)._replace(policy=policy)
    with pytest.raises(ValueError, match="part") as caught:
        vector_task.run(strategy, MIXED, MACHINE, 3.5)
    assert "in_parts" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cancelled_round_must_be_in_flight():
    def init(workers, num_examples):
        return (), schedule.Actions(cancel=(0,))

    policy = schedule.Policy(init, lambda state, event: (state, schedule.Actions()))
    strategy = tiny_runs.averaging()._replace(policy=policy)
    words = r"worker 0 \(a\) has no local round in flight to cancel"
    with pytest.raises(ValueError, match=words):
        tiny_runs.train(tiny_runs.machine(1.0), strategy, 3.0)
