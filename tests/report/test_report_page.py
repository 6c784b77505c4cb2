"""The HTML page of a comparison: complete, escaped, deterministic, also from a file."""

import base64
import re
from html.parser import HTMLParser

import pytest

from hetjax.engine.records.history import Interruption, WorkerEvent
from hetjax.report import Comparison
from hetjax.report.drawing import panels

VOID = {"meta", "img", "br"}
EVIL = "<script>alert('x')</script>&\"$title"


class Checker(HTMLParser):
    """Collects texts, tags and addresses; tags must be closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.tags, self.sources = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
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
        "sync learning_rate=0.5",
        "strategy 0.1 0.5 chosen sync diverged 0.9 0.5",
        "on 90 held-out training examples; each strategy its own",
        "worker cost.fixed w0 0.25 w0 0.25",
        "root 1e+10 2e-05 ring",
        "noise 0.02",
        "hetjax.compare(task, data, machine, strategies, seconds=10.0, ",
        "seeds=(0, 1, 2), num_evals=3, learning_rates=(0.1, 0.5), tune='each')",
        "learning rates, chosen on 90 held-out examples: sync 0.5",
        "hetjax 0.1 jax 0.9.9 python 3.11.2",
        "w0 100.0 0.0 30 960 w1 60.0 40.0 30 960",  # busy, waiting, updates, examples
    ):
        assert expected in text, expected
    # two of curves, one of batch sizes, a timeline of each strategy
    assert len(found.sources) == 5
    starts = {"png": b"\x89PNG", "svg+xml": b"<?xml"}
    for source in found.sources:
        kind, _, data = source.removeprefix("data:image/").partition(";base64,")
        assert base64.b64decode(data).startswith(starts[kind])
    assert not {"script", "link"} & found.tags
    html = page.read_text()
    assert not re.search(r"https?://|@import|url\(", html)


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
    assert "script" not in found.tags
    assert text.count("alert('x')") > 12
    html = (tmp_path / "report.html").read_text()
    assert "<script" not in html
    # within attributes, too
    assert '"$title' not in html


def test_the_same_comparison_gives_the_same_bytes(full, page, tmp_path):
    full.report(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == page.read_bytes()
    assert len(page.read_bytes()) < 500_000


def test_a_page_from_a_file_says_what_it_lacks(full, page, tmp_path):
    full.to_json(tmp_path / "results.json")
    again = Comparison.from_json(tmp_path / "results.json")
    found, text = parsed(again, tmp_path)
    assert "The runs were read from a file, which has no timelines." in text
    assert len(found.sources) == 3
    assert "w0 100.0 0.0 30 960" in text
    whole, said = read(page)
    assert "not in the file" not in said
    assert whole.sources[:3] == found.sources


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


def test_the_call_has_own_seconds_and_epochs(make, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "_saved", lambda *given, **more: b"")  # text alone
    runs = [make("a", accuracies=(0.1, 0.2), duration=4.0), make("b")]
    call = parsed(Comparison(runs, data={}, machine={}), tmp_path)[1]
    assert "seconds={'a': 4.0, 'b': 10.0}, seeds=(0,), num_evals=1)" in call
    for h in runs:
        h.stopped = "stopped at 4 s as asked: 2.5 epochs are done"
    call = parsed(Comparison(runs, data={}, machine={}), tmp_path)[1]
    assert "seconds=10.0, seeds=(0,), num_evals=1, epochs=2.5)" in call


def test_the_call_has_what_the_runs_were_asked(make, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "_saved", lambda *given, **more: b"")  # text alone

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


def test_a_machine_that_a_call_makes_is_made_first(make, tmp_path, monkeypatch):
    monkeypatch.setattr(panels, "_saved", lambda *given, **more: b"")  # text alone
    call = "hetjax.cluster_machine(local_workers=3)"
    machine = {"name": "cluster", "workers": 3, "call": call}
    runs = Comparison([make(real=True)], data={}, machine=machine)
    assert f"machine = {call} hetjax.compare(task, " in parsed(runs, tmp_path)[1]
    # a script makes it itself
    assert "machine = " not in parsed(runs, tmp_path, command="python a.py")[1]
