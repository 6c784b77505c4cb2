"""The settings of the papers' tables and figures: they build, and say what papers say.

Nothing is trained, and no data are read: plans need only their sizes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from once import once

ROOT = Path(__file__).parents[2]
SETTINGS = ROOT / "experiments" / "papers" / "settings"
PROCESS = Path(__file__).with_name("settings_process.py")
FILES = sorted(path.stem for path in SETTINGS.glob("*.flags"))
LARGE = [name for name in FILES if name.startswith("adaptive_sgd")]  # data are made


def described(names):
    given = json.dumps([str(SETTINGS / f"{name}.flags") for name in names])
    result = subprocess.run(
        [sys.executable, str(PROCESS)],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    return {Path(path).stem: value for path, value in found.items()}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    names = [name for name in FILES if name not in LARGE]
    return once(tmp_path_factory, "settings", lambda: described(names))


def check(found):
    for name, setting in found.items():
        assert min(setting["seconds"].values()) > 0, name
        assert setting["out"].startswith("results_"), name
        assert setting["strategies"], name
    folders = [setting["out"] for setting in found.values()]
    assert len(set(folders)) == len(folders)


@pytest.mark.full  # 24 models are traced, and their machines simulated
def test_every_file_can_be_planned(settings):
    check(settings)
    assert len(settings) == len(FILES) - len(LARGE)


@pytest.mark.full  # tens of thousands of sparse rows are made
def test_the_largest_can_be_planned():
    check(described(LARGE))


# Tables 5 and 6 of Biased Local SGD: batch, epochs, rate, weight decay, decay
TABLES = {
    "table5.cifar10": (64, 100, 0.1, 1e-4, (60, 80)),
    "table5.flowers102": (32, 150, 0.1, 1e-4, (100, 130)),
    "table5.cifar100": (128, 200, 0.05, 5e-4, (100, 180)),
    "table5.tiny_imagenet": (64, 10, 1e-4, 0.01, "cosine"),
    "table5.ag_news": (64, 10, 1e-3, 1e-4, (7,)),
    "table6.cifar10": (32, 200, 0.1, 1e-4, (120, 160)),
    "table6.cifar100": (32, 400, 0.1, 5e-4, (200, 360)),
    "table6.tiny_imagenet": (32, 20, 1e-4, 0.01, "cosine"),
    "table6.ag_news": (32, 20, 1e-3, 1e-4, (14,)),
}
WORKERS = {"table5": 2, "table6": 10}
PARAMETERS = {  # ResNet-20 with a projection in its first stage; 100 classes; ...
    "cifar10": 272_474 + 256 + 32,
    "flowers102": 11_008_566,
    "cifar100": 36_536_884,
    "tiny_imagenet": 86_567_656 - 769 * 800,
    "ag_news": 66_955_010 + 2 * 769,
}


@pytest.mark.full  # see above
@pytest.mark.parametrize("name", TABLES)
def test_the_settings_of_biased_local_sgd(settings, name):
    batch, epochs, rate, decay, falls = TABLES[name]
    setting = settings[f"biased_local_sgd.{name}"]
    table, data = name.split(".")
    assert setting["epochs"] == epochs
    assert setting["workers"] == WORKERS[table]
    assert setting["parameters"] == PARAMETERS[data]
    assert list(setting["strategies"]) == ["sync_sgd", "local_sgd", "biased_local_sgd"]
    for strategy in setting["strategies"].values():
        assert strategy["batch_size"] == batch
        assert float(strategy["settings"]["weight_decay"]) == decay
        rates = strategy["rates"]
        assert rates[0] == pytest.approx(rate)
        if falls == "cosine":
            assert rates[4] == pytest.approx(rate / 2)
            assert rates[8] == pytest.approx(0, abs=1e-9)
        else:
            expected = rate * 0.1 ** len(falls)
            assert rates[8] == pytest.approx(expected, rel=1e-4)


TABLE7 = {  # seconds of synchronous SGD and of balanced local SGD
    "cifar10": (8025.6, 3933.6),
    "flowers102": (141_023.2, 138_686.9),
    "cifar100": (261_961.1, 254_498.3),
}


@pytest.mark.full  # see above
@pytest.mark.parametrize("name", TABLE7)
def test_times_of_table_7(settings, name):
    """Of the biased runs, epochs are counted in another way."""
    found = settings[f"biased_local_sgd.table5.{name}"]["seconds"]
    times = [found[strategy] / 1.02 for strategy in ("sync_sgd", "local_sgd")]
    assert times == pytest.approx(TABLE7[name], rel=0.005)


@pytest.mark.full  # see above
def test_targets_and_learners_of_crossbow(settings):
    for name, workers, parameters in (
        ("lenet", 2, 1_111_946),
        ("resnet32", 16, 466_906 + 3 * 640),
        ("vgg16", 16, 15_038_116),
        ("resnet50", 16, 25_557_032),
        ("resnet101", 8, 44_549_160),
    ):
        setting = settings[f"crossbow.figure9.{name}"]
        assert setting["workers"] == workers, name
        assert setting["parameters"] == parameters, name
        assert list(setting["strategies"]) == ["sma", "easgd_sync", "sync_sgd"]


CROSSBOW = {  # batch, epochs, target, decay, falls by a factor; rate .1, momentum .9
    "lenet": (4, 100, 0.99, 1e-4, 0, 1.0),
    "resnet32": (64, 140, 0.88, 1e-4, 2, 0.1),  # at 80 and 120
    "vgg16": (16, 250, 0.69, 5e-4, 12, 0.5),  # every 20
    "resnet50": (16, 90, 0.53, 1e-4, 3, 0.1),
    "resnet101": (32, 90, 0.749, 1e-4, 3, 0.1),
}


@pytest.mark.full  # see above
@pytest.mark.parametrize("name", CROSSBOW)
def test_the_settings_of_crossbow(settings, name):
    batch, epochs, target, decay, falls, factor = CROSSBOW[name]
    setting = settings[f"crossbow.figure9.{name}"]
    assert (setting["epochs"], setting["target"]) == (epochs, target)
    rate, momentum = (1e-3, 0.0) if name == "lenet" else (0.1, 0.9)
    for key, strategy in setting["strategies"].items():
        own = strategy["settings"]
        assert strategy["batch_size"] == batch
        assert float(own["weight_decay"]) == decay
        which = "server_momentum" if key == "sync_sgd" else "momentum"
        assert float(own[which]) == momentum
        assert strategy["rates"][0] == pytest.approx(rate)
        assert strategy["rates"][8] == pytest.approx(rate * factor**falls, rel=1e-4)


HIER_SGD = {  # T_1, T_2 of Table I, and T of HierSGD_2; rate .1 is ours
    "vgg": ((4, 16), (16,)),
    "nin": ((2, 4), (4,)),
    "convnet": ((4, 16), (4,)),
}


@pytest.mark.full  # see above
@pytest.mark.parametrize("name", HIER_SGD)
def test_the_settings_of_hier_sgd(settings, name):
    three, two = HIER_SGD[name]
    for file, epochs, local_steps, falls in (
        (f"table1.{name}", 300, three, 11),
        (f"figures1to3.{name}", 600, two, 11),
    ):
        setting = settings[f"hier_sgd.{file}"]
        assert (setting["epochs"], setting["workers"]) == (epochs, 128)
        own = setting["strategies"]["hier_sgd"]
        assert own["settings"]["local_steps"] == repr(local_steps)
        assert own["settings"]["levels"] == ("()" if len(local_steps) == 1 else "None")
        assert own["rates"][8] == pytest.approx(0.1 * 0.5**falls, rel=1e-4)
        assert own["batch_size"] == 128


@pytest.mark.full  # see above
def test_every_file_says_what_is_ours():
    for name in FILES:
        text = (SETTINGS / f"{name}.flags").read_text()
        comment = [line for line in text.splitlines() if line.startswith("#")]
        assert "Ours:" in " ".join(comment), name
