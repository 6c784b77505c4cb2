"""The summary of a comparison and its table, against numbers computed by hand."""

import math

import pytest

from hetjax.engine.records.history import WorkerEvent
from hetjax.report import Comparison, History, Table, WorkerRecord


def compare(*histories, **kwargs):
    return Comparison(list(histories), data={}, machine={}, **kwargs)


def test_strategies_in_first_seen_order(runs):
    assert runs.strategies == ["sync", "async"]
    assert runs.metric == "accuracy"


def test_summary_of_three_seeds(runs):
    sync = runs.summary(target=0.9)[0]
    assert sync == {
        "strategy": "sync",
        "best": 0.90,  # of 0.94, 0.90, 0.80
        "best_spread": [0.80, 0.94],
        "final": 0.90,
        "collapsed": [],
        "at_end": None,  # evaluations were of the whole test split
        "seconds_to_target": 3.0,  # of 2, 3, never
        "waiting_share": 0.2,  # of 0.2, 0.1, 0.4: (0 + 4) / (2 x 10) and so on
        "updates": 60,
        "examples": 1920,
        "merges": 0,
        "mb_per_worker": 0.0,
        "padding_share": 0.0,
        "compilations": 9,
        "seeds": [0, 1, 2],
        "stopped": [],
    }


def test_a_median_of_mostly_never_is_never(runs):
    assert runs.summary(target=0.94)[0]["seconds_to_target"] is None  # 3, never, never


def test_median_of_two_seeds_of_which_one_never_is_never(make):
    runs = compare(make(seed=0, accuracies=(0.1, 0.9)), make(seed=1, accuracies=(0.1,)))
    (row,) = runs.summary(target=0.9)
    assert row["seconds_to_target"] is None
    assert row["best"] == pytest.approx(0.5)  # between 0.9 and 0.1


def test_medians_are_of_totals_over_workers(make):
    runs = compare(*(make(seed=s, accuracies=(0.5,)) for s in range(3)))
    for h, (first, second) in zip(
        runs.histories, [(1, 9), (4, 4), (100, 1)], strict=True
    ):
        h.workers[0].examples, h.workers[1].examples = first, second
        h.workers[0].updates, h.workers[1].updates = second, first
    (row,) = runs.summary()
    assert (row["updates"], row["examples"]) == (10, 10)  # of 10, 8, 101


def test_default_target_is_97_percent_of_the_best_median(make):
    runs = compare(
        make("a", 0, (0.1, 0.99)), make("a", 1, (0.1, 0.89)), make("b", 0, (0.9,))
    )
    # final medians: a (0.99 + 0.89) / 2 = 0.94, b 0.9; 0.97 x 0.94 = 0.9118
    assert runs.target == 0.912
    caption = "target 0.912 accuracy: 97 % of the best final median"
    assert caption in str(runs.table()).splitlines()
    assert "97 %" not in str(runs.table(target=0.5))


def test_a_given_target_is_kept(make):
    runs = compare(make(accuracies=(0.1, 0.9)), target=0.1)
    assert runs.target == 0.1
    assert runs.summary()[0]["seconds_to_target"] == 0.0
    assert "97 %" not in str(runs.table())


@pytest.mark.parametrize("best", [0.000123, 0.5, 65.2, -2.0])
def test_default_target_is_reached_at_any_scale(make, best):
    runs = compare(make(accuracies=(best - abs(best), best)))
    assert runs.summary()[0]["seconds_to_target"] == 1.0
    assert runs.target < best


def test_workers_that_were_never_used_do_not_wait(make):
    h = make(accuracies=(0.5,), waiting=(5.0,))
    h.workers.append(WorkerRecord("spare", idle=10.0))
    assert compare(h).summary()[0]["waiting_share"] == 0.5


def test_nan_is_not_the_best(make):
    for accuracies in ((math.nan, 0.5, 0.7), (0.7, math.nan), (0.7, 0.5, math.nan)):
        assert compare(make(accuracies=accuracies)).summary()[0]["best"] == 0.7


def test_a_seed_without_evaluations_makes_the_best_unknown(make):
    seeds = [make("a", 0, ()), make("a", 1, (0.9,)), make("a", 2, (0.8,))]
    runs = compare(*seeds, make("b", 0, (0.5,)))
    row = runs.summary()[0]
    assert math.isnan(row["best"])
    assert all(map(math.isnan, row["best_spread"]))
    assert runs.target == 0.485  # from b alone


def test_table_text(runs):
    runs.histories[3].stopped = "loss is not finite"
    assert str(runs.table(target=0.9)).splitlines() == [
        "strategy         best accuracy  final accuracy  virtual seconds to 0.9"
        "  updates  examples  merges  waiting [%]  compilations",
        "-" * 124,
        "sync      0.900 [0.800, 0.940]           0.900                    3.00"
        "       60     1,920       0         20.0             9",
        "async                    0.850           0.850                   never"
        "       60     1,920       0          0.0             5",
        "target 0.9 accuracy",
        "final: mean of the last tenth of the evaluations; a target is reached when it "
        "is held",
        "medians over seeds [lowest, highest]; compilations: sum",
        "sync, seed 2, stopped early: loss is not finite",
    ]


def test_table_of_single_runs_has_no_spread(make):
    text = str(compare(make(accuracies=(0.1, 0.9))).table())
    assert "[0" not in text
    assert "medians" not in text


def test_seconds_keep_three_digits_of_the_smallest(make):
    a, b = make("a", 0, (0.9,)), make("b", 0, (0.9,))
    a.evals[0]["seconds"], b.evals[0]["seconds"] = 12345.678, 45.678
    cells = [row[3] for row in compare(a, b).table().rows]
    assert cells == ["12,345.7", "45.7"]


def test_table_in_html_escapes_names():
    html = Table(("strategy", "n"), (("a<b>", "1"),), ("x & y",))._repr_html_()
    assert 'style="text-align: left">a&lt;b&gt;</th>' in html
    assert 'style="text-align: right">1</td>' in html
    assert "x &amp; y</caption>" in html


def test_no_histories_are_refused():
    with pytest.raises(ValueError, match="no histories"):
        compare()


def test_the_same_strategy_and_seed_twice_is_refused(make):
    with pytest.raises(ValueError, match="two runs are named 'sync' with seed 0"):
        compare(make(accuracies=(0.1,)), make(accuracies=(0.2,)))


def test_different_metrics_are_refused(make):
    other = History("b", 0, {}, "p_at_1")
    with pytest.raises(ValueError, match="accuracy, p_at_1"):
        compare(make(), other)


def test_csv_has_a_row_per_evaluation(runs, tmp_path):
    runs.histories[1].evals[1]["p_at_3"] = float("nan")
    runs.to_csv(tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "strategy,seed,seconds,updates,examples,loss,accuracy,p_at_3"
    assert lines[2] == "sync,0,1.0,10,320,1.5,0.5,"
    assert lines[6] == "async,0,1.0,10,320,1.3,0.7,nan"
    assert lines[9] == "sync,1,0.0,0,0,1.8,0.2,"
    assert len(lines) == 1 + 4 * 4


def test_padding_is_a_share_of_all_examples(make):
    h = make(accuracies=(0.1, 0.9))  # two workers of 960 examples each
    h.workers[0].padded = 480
    assert Comparison([h], data={}, machine={}).summary()[0]["padding_share"] == 0.2


def test_the_repr_for_a_notebook_is_short(make, runs):
    assert repr(make(accuracies=(0.1, 0.9), stopped="enough")) == (
        "<History of sync, seed 0: 2 points over 10 s, best accuracy 0.9, enough>"
    )
    assert repr(runs) == str(runs.table())
    assert runs._repr_html_() == runs.table()._repr_html_()


def test_no_target_where_nobody_learned(make):
    """As in runs that diverged: the untrained model is the best one."""
    runs = compare(make(accuracies=(0.3, 0.2)), make("other", accuracies=(0.3, 0.1)))
    assert [row["seconds_to_target"] for row in runs.summary()] == [None, None]
    assert "no target: no final accuracy is better than at the start" in str(
        runs.table()
    )
    runs = compare(make(accuracies=(0.3, 0.2)), make("other", accuracies=(0.3, 0.4)))
    assert runs.target == 0.388


def test_runs_of_other_budgets_are_not_added(make):
    short, long = compare(make("short")), compare(make("long"))
    short.histories[0].duration = long.histories[0].duration / 2
    with pytest.raises(ValueError, match="of different runs cannot be added: runs of"):
        short + long
    short.histories[0].stopped = "its loss became nan"  # the requested duration
    assert (short + long).strategies == ["short", "long"]


def test_bytes_that_moved_are_in_the_table_and_in_the_file(make, tmp_path):
    """Medians over seeds of the mean of all workers; no column without transfers."""
    histories = [make("sync", seed, (0.5,), real=True) for seed in (0, 1)]
    histories.append(make("async", 0, (0.5,), real=True))
    for history in histories:
        history.placement = "a cluster of 2 nodes"
    for worker in histories[0].workers:
        worker.bytes_received, worker.bytes_sent = 1_000_000, 1_250_000
        worker.node = "a"
    made = Comparison(histories, data={"name": "hand-made"}, machine={"workers": 2})
    for worker in histories[1].workers:
        worker.bytes_sent = 1_000_000
    table = made.table()
    at = table.header.index("MB per worker")
    # of sync, the seeds' 2.25 and 1 MB from a worker and to it
    assert [row[at] for row in table.rows] == ["1.62", "0.00"]
    made.to_json(tmp_path / "results.json")
    again = Comparison.from_json(tmp_path / "results.json")
    assert again.histories[0].workers == histories[0].workers
    none = Comparison([make("sync", 0, (0.5,))], data={}, machine={})
    assert "MB" not in str(none.table())


def test_workers_and_events_are_read_by_name_too(make):
    h = make(accuracies=(0.1,))
    h.events = [WorkerEvent(1.5, "w0", "lost", "")]
    assert (h.workers[0]["busy"], h.events[0]["seconds"]) == (10.0, 1.5)
    assert (h.workers[0].busy, h.events[0][0], h.events[0].what) == (10.0, 1.5, "lost")
    for record in (h.workers[0], h.events[0], h.evals[0]):
        with pytest.raises(KeyError, match="nothing"):
            record["nothing"]


def test_classes_without_training_examples_are_in_the_table(make):
    note = "2 class ids that only the test split has, and no model can learn: 2, 3"
    data = {"notes": ["a remark", note]}
    runs = Comparison([make(accuracies=(0.1, 0.2))], data=data, machine={})
    assert note in runs.table().caption
    assert "a remark" not in runs.table().caption


def test_a_run_that_is_not_compiled_is_named_with_the_reason(make):
    """Unless it was asked for."""
    slow = "reference player: a convolution in a loop is slow on a CPU"
    played = ["compiled", slow, slow, slow, "reference player: compiled=False", ""]
    names = ["a", "b", "b", "c", "d", "e"]
    every = zip(names, range(6), played, strict=True)
    runs = compare(
        *(make(name, seed, (0.1, 0.9), played=how) for name, seed, how in every)
    )
    lines = [line for line in runs.table().caption if "player" in line]
    assert lines == [f"b, c: {slow}"]
