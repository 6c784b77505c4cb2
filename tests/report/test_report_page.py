"""The HTML page of a comparison: complete, escaped, deterministic, also from a file."""

from array import array
from html.parser import HTMLParser

import numpy as np
import pytest

from hetjax.engine.records.history import Interruption, WorkerEvent
from hetjax.report import Comparison, interactive, plot_data

VOID = {"meta", "br"}
EVIL = "<script>alert('x')</script>&\"$title"


class Checker(HTMLParser):
    """Collects texts, tags, plots and addresses; tags must be closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.tags, self.plots, self.sources = (
            [],
            [],
            set(),
            [],
            [],
        )

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        self.plots += [value for name, value in attrs if name == "aria-label"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)


def parsed(comparison, folder, **options):
    comparison.report(folder / "report.html", **options)
    return read(folder / "report.html")


def read(path):
    """(the parser with its results, all text) of a page."""
    html = path.read_text(encoding="utf-8")
    found = Checker()
    found.feed(html)
    assert found.open == []
    return found, " ".join(" ".join(found.texts).split())


@pytest.fixture(scope="module")
def full(make_histories):
    """A comparison with content for every section."""
    histories = make_histories()
    first, other = histories[0], histories[1]
    first.workers[0].batch_size_over_time = [(0.0, 32.0), (4.0, 48.5)]
    first.merge_times.extend([2.0, 4.0, 8.0])
    first.events = [WorkerEvent(1.5, "w1", "lost", "Traceback\nKeyError: 'x'")]
    first.interruptions = [Interruption(3.0, 2, "")]
    first.workers[0].staleness, first.workers[1].bytes_sent = {0: 2, 3: 1}, 2_500_000
    first.workers[1].cancelled, first.workers[1].cancelled_seconds = 7, 1.25
    first.parts = {"policy": "rounds", "merge": "average"}
    first.parameters, first.command = 12345, "python 'my file.py' --seeds=3"
    first.host_seconds, first.compile_seconds = 2.5, 1.0
    other.stopped = "loss is not finite"
    tuning = {
        "tune": "each",
        "held_out": 90,
        "scores": {"sync": {"0.1": float("-inf"), "0.5": 0.9}},
        "chosen": {"sync": 0.5},
    }
    link = {"latency": 2e-5, "bandwidth": 1e10, "topology": "ring"}
    machine = {
        "name": "two",
        "workers": ({"name": "w0", "cost": {"fixed": 0.25}, "duty": None},) * 2,
        "links": {"": link},
        "noise": 0.02,
    }
    return Comparison(
        histories,
        data={"name": "hand-made", "train_examples": 1438},
        machine=machine,
        tuning=tuning,
        versions={"hetjax": "0.1", "jax": "0.9.9", "python": "3.11.2"},
    )


@pytest.fixture(scope="module")
def page(full, tmp_path_factory):
    """The path of its page."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    full.report(path)
    return path


def test_everything_that_a_reader_asks_is_there(page):
    found, text = read(page)
    for expected in (
        "2 strategies on hand-made, machine two",
        "hand-made: 1,438 training examples",
        "two (2 simulated workers)",
        "10 virtual seconds per run",
        "accuracy: larger is better",
        "0.873 accuracy, from the best final median",
        "best final accuracy sync: 0.900 first",
        "sync: 3.00 virtual seconds",  # the first at the target
        "medians over seeds [lowest, highest]; compilations: sum",
        "async, seed 0, was stopped after 10 s: loss is not finite",
        "sync, seed 0, was resumed at 3 s from its checkpoint 2",
        "sync 0 1.5 w1 lost Traceback KeyError: 'x'",
        "sync rounds average learning_rate=0.5",
        "model 12,345 parameters",
        "wall time 3.5 s for 4 runs, of which 1.0 s to compile",
        "The runs were made by python 'my file.py' --seeds=3 hetjax 0.1",
        "The curves as a table strategy 0 s 0.6 s 1.2 s 1.8 s 2.4 s 3 s",
        "async 0.1 0.1 0.7 0.7 0.8 0.85",
        "strategy 0.1 0.5 chosen sync diverged 0.9 0.5",
        "on 90 held-out training examples; each strategy its own",
        "worker cost.fixed w0 0.25 w0 0.25",
        "root 1e+10 2e-05 ring",
        "noise 0.02",
        "hetjax.compare(task, data, machine, strategies, seconds=10.0, ",
        "seeds=(0, 1, 2), num_evals=3, learning_rates=(0.1, 0.5), tune='each')",
        "learning rates, chosen on 90 held-out examples: sync 0.5",
        "hetjax 0.1 jax 0.9.9 python 3.11.2",
        "busy [%] waiting [%] updates examples merges MB to it cancelled rounds",
        "cancelled [%] w0 100.0 0.0 30 960 3 0.00 0 0.0",
        "w1 60.0 40.0 30 960 0 2.50 7 12.5",
    ):
        assert expected in text, expected
    assert found.plots == [
        "accuracy over virtual time",
        "accuracy over the examples that all workers processed",
        "sync: workers' batch sizes",
        "sync, seed 0: each worker's time",
        "async, seed 0: each worker's time",
    ]
    assert not found.sources  # nothing is fetched
    assert "link" not in found.tags


def test_runs_that_did_their_epochs_did_not_stop_early(make, tmp_path):
    why = "stopped at 9 s as asked: 2 epochs are done"
    stopped = "stopped at 9 s as asked: on_eval returned STOP"
    histories = [
        make("a", 0, (0.1, 0.9), stopped=why),
        make("b", 0, (0.2, 0.8), stopped=stopped),
    ]
    assert [h.ended_early for h in histories] == [False, True]
    runs = Comparison(histories, data={"name": "a"}, machine={"workers": 2})
    lines = str(runs.table()).splitlines()
    assert f"a, seed 0: {why}" in lines
    assert f"b, seed 0, stopped early: {stopped}" in lines
    _, text = parsed(runs, tmp_path)
    assert f"a, seed 0: {why}" in text
    assert f"b, seed 0, was stopped after 10 s: {stopped}" in text
    titles = [ax.get_title("left") for ax in runs.plot_timeline().axes[::2]]
    assert [title.endswith("stopped early") for title in titles] == [False, True]
    labels = {t.get_text() for ax in runs.plot().axes for t in ax.texts}
    assert "b\n(stopped early)" in labels
    assert "a\n(stopped early)" not in labels


def test_all_texts_are_escaped(make, tmp_path):
    h = make(EVIL, 0, (0.1, 0.9), settings={EVIL: EVIL}, stopped=EVIL, stuck=[EVIL])
    h.events = [WorkerEvent(1.0, EVIL, EVIL, EVIL)]
    h.workers[0].name = EVIL
    runs = Comparison(
        [h],
        data={"name": EVIL, "notes": [EVIL]},
        machine={"name": EVIL, EVIL: EVIL, "workers": [{"name": EVIL, EVIL: EVIL}]},
        versions={"hetjax": EVIL},
    )
    found, text = parsed(runs, tmp_path, command=EVIL)
    assert text.count("alert('x')") > 12
    html = (tmp_path / "report.html").read_text()
    assert html.count("<script") == 3  # the library, the plots' data, and their start
    # within attributes, too
    assert '"$title' not in html.partition("<script")[0]


def test_the_same_comparison_gives_the_same_bytes(full, page, tmp_path):
    full.report(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == page.read_bytes()
    assert len(page.read_bytes()) < 1_500_000


def test_a_page_from_a_file_says_what_it_lacks(full, page, tmp_path):
    full.to_json(tmp_path / "results.json")
    again = Comparison.from_json(tmp_path / "results.json")
    found, text = parsed(again, tmp_path)
    assert "The runs were read from a file, which has no timelines." in text
    assert "w0 100.0 0.0 30 960" in text
    whole, _ = read(page)
    assert whole.plots[:3] == found.plots


def test_little_to_say(make, tmp_path):
    runs = Comparison(
        [make(real=True, placement="threads", step_modes={"cpu": "fused"})],
        data={},
        machine={"workers": 2},
    )
    found, text = parsed(runs, tmp_path, command="python mine.py --seeds=1")
    assert "sync on one data set" in text
    assert "All runs used their whole budget. No worker failed, left or joined." in text
    assert "python mine.py --seeds=1" in text
    assert "placement threads" in text
    assert "step modes cpu: fused" in text
    assert "Timings of real devices vary" in text
    for absent in ("Batch sizes", "How learning rates", "best final", "nan:"):
        assert absent not in text


def test_how_simulated_runs_were_played(make, tmp_path):
    slow = "reference player: a convolution in a loop is slow on a CPU"
    one = [make("sync", accuracies=(0.1, 0.9), played="compiled")]
    several = [*one, make("async", accuracies=(0.1, 0.9), played=slow)]
    text = parsed(Comparison(one, data={}, machine={}), tmp_path)[1]
    assert "played compiled" in text
    text = parsed(Comparison(several, data={}, machine={}), tmp_path)[1]
    assert f"played sync: compiled; async: {slow}" in text
    assert text.count(slow) == 2  # below the table, too


def test_the_call_has_own_seconds_and_epochs(make, tmp_path):
    runs = [make("a", accuracies=(0.1, 0.2), duration=4.0), make("b")]
    call = parsed(Comparison(runs, data={}, machine={}), tmp_path)[1]
    assert "seconds={'a': 4.0, 'b': 10.0}, seeds=(0,), num_evals=1)" in call
    for h in runs:
        h.stopped = "stopped at 4 s as asked: 2.5 epochs are done"
    call = parsed(Comparison(runs, data={}, machine={}), tmp_path)[1]
    assert "seconds=10.0, seeds=(0,), num_evals=1, epochs=2.5)" in call


def test_the_call_has_what_the_runs_were_asked(make, tmp_path):

    def call(*asked):
        runs = [make("a", seed, (0.1, 0.2), **more) for seed, more in enumerate(asked)]
        return parsed(Comparison(runs, data={}, machine={}), tmp_path)[1]

    asked = {"played": "reference player: compiled=False", "schedule_seed": 1}
    assert "num_evals=1, schedule_seed=1, compiled=False)" in call(asked, asked)
    of_seeds = [{"schedule_seed": seed, "played": "compiled"} for seed in (0, 1)]
    assert "num_evals=1)" in call(*of_seeds)
    assert "num_evals=1)" in call({}, {})  # not known


def test_a_common_rate_is_below_the_table(make):
    tuning = {"tune": "common", "held_out": 1430, "chosen": {"sync": 0.5}}
    tuning["scores"] = {"sync": {"0.5": 0.9}}
    table = str(Comparison([make()], data={}, machine={}, tuning=tuning))
    assert "\nlearning rate 0.5 for all, chosen on 1,430 held-out examples" in table


def test_a_machine_that_a_call_makes_is_made_first(make, tmp_path):
    call = "hetjax.cluster_machine(local_workers=3)"
    machine = {"name": "cluster", "workers": 3, "call": call}
    runs = Comparison([make(real=True)], data={}, machine=machine)
    assert f"machine = {call} hetjax.compare(task, " in parsed(runs, tmp_path)[1]
    # a script makes it itself
    assert "machine = " not in parsed(runs, tmp_path, command="python a.py")[1]


def test_the_page_of_a_large_run_is_small_and_says_how(make, tmp_path):
    """Of 100,000 rounds by 100 workers: busy for half of the time, then merging."""
    h = make("sync", accuracies=(0.1, 0.9), waiting=[0.0] * 100)
    length = h.duration / 1000
    start = np.tile(length * np.arange(1000), 100)
    rounds = np.zeros((2, 100_000, 4))
    rounds[:, :, 0] = np.repeat(np.arange(100), 1000)
    rounds[0, :, 2:] = np.transpose([start, start + 0.5 * length])
    rounds[1, :, 1:] = np.transpose(
        [start * 0 + 1, start + 0.5 * length, start + length]
    )
    h.timeline.numbers = array("d", rounds.ravel())
    runs = Comparison([h], data={}, machine={})
    _, text = parsed(runs, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 4_000_000
    assert "24 of 100 workers are shown" in text
    assert "48,000 segments" not in text  # as many as a page may show
    table = plot_data.segments(h)
    rows = [0, 50, 99]
    table = table[np.isin(table[:, 0], rows)]
    busy, merging, transfer = interactive._summed(table, rows, np.linspace(0, 10.0, 11))
    assert len(transfer["row"]) == 0
    for bars, offset in ((busy, 0.0), (merging, 0.5)):
        np.testing.assert_allclose(bars["seconds"], 0.5)
        np.testing.assert_allclose(bars["start"], np.tile(np.arange(10.0), 3) + offset)
        assert list(bars["row"]) == [0] * 10 + [1] * 10 + [2] * 10
    assert set(busy["rounds"]) == {100}


def test_batch_sizes_of_many_workers_are_those_of_some(make, tmp_path):
    h = make("sync", accuracies=(0.1, 0.9), waiting=[0.0] * 1000)
    for worker in h.workers:
        worker.batch_size_over_time = [(0.0, 32.0), (5.0, 48.0)]
    _, text = parsed(Comparison([h], data={}, machine={}), tmp_path)
    assert "sync: workers' batch sizes. 24 of 1,000 workers are shown." in text
    assert (tmp_path / "report.html").stat().st_size < 2_000_000


def test_long_curves_are_thinned_and_the_page_says_so(make, tmp_path):
    h = make("sync", accuracies=np.linspace(0.0, 0.9, 5_000))
    _, text = parsed(Comparison([h], data={}, machine={}), tmp_path)
    assert "Longer curves are thinned to 1,000 points." in text
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


def test_a_target_that_the_initial_model_reaches(make, tmp_path):
    runs = Comparison([make(accuracies=(0.5, 0.6))], data={}, machine={}, target=0.1)
    assert "first at the target sync: 0.000 virtual s" in parsed(runs, tmp_path)[1]
