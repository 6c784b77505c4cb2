"""The papers' machines with the step times of their own models, for `presets`.

Names are those of a machine and a model: "rtx4090+epyc7543-resnet20". Times that a
paper states are used, or derived as the comment says; other times are estimated from
the multiplications of a model, and marked as such.
"""

from hetjax.machine.simulated_machine import Machine
from hetjax.machine.workers_and_links import Cost, Link, Profile

# --- Biased Local SGD: one RTX 4090 and one EPYC 7543, or eight and two ---------------

# Seconds of a WRN-28 batch of 128 images, as published: the preset rtx4090+epyc7543
RTX4090_SECONDS, EPYC7543_SECONDS, WRN_BATCH = 0.1940, 6.5230, 128
# Seconds of a batch on the GPU, on the CPU, and of a synchronization, from Table 7's
# wall-clock times with the fewest epochs: with N / (2 b) iterations per epoch,
#   sync: t_cpu + c;   balanced: t_cpu + c / 32;   biased: t_gpu + c / 32
TABLE7 = {
    "resnet20": (64, 0.03342, 0.09732, 0.1081),  # CIFAR-10
    "wrn16": (32, 0.3949, 9.618, 0.1673),  # Flowers102, at 224 pixels
    # CIFAR-100; with the published 0.1940 and 6.5230 the sync run would have no time
    # for synchronization, and the biased run would be 2 % longer
    "wrn28": (128, 0.1901, 6.509, 0.1972),
}
# Not published: the GPU's and the CPU's rates of multiplications with WRN-28-10 (5.25e9
# forward per image), on ViT-B/16 at 224 pixels and DistilBERT with 256 tokens
WRN_FLOPS = 6 * 5.25e9  # of a step, per image: two per multiplication, three passes
ESTIMATED = {"vit": 6 * 17.6e9, "distilbert": 6 * 11.5e9}

# --- CROSSBOW: one or eight Titan X (Pascal) on PCIe ----------------------------------

# ResNet-32 with batches of 64 on eight GPUs: images/s without synchronization, and with
# one in every step (Figure 16)
TITAN_X_RATE, TITAN_X_SYNC_RATE, RESNET32_BATCH = 18_500 / 8, 15_500 / 8, 64
# of a step with one learner; TensorFlow's utilization of a GPU at this batch is 68 %
RESNET32_FIXED = 0.32
# Throughput of a GPU with 1, 2, ... learners: 1.4 with 4 on one GPU (Figure 12); the
# points between are assumed
RESNET32_CURVE = (1.0, 1.12, 1.25, 1.4)
# "~220 ms" for a step of ResNet-50, which we read as that of its best setting: batches
# of 16, two learners per GPU (each of which takes twice as long as alone)
RESNET50_SECONDS, RESNET50_BATCH, RESNET50_LEARNERS = 0.220, 16, 2
# "less than 1 ms" for a step of LeNet
LENET_SECONDS = 1e-3
# Not published: ResNet-101 from ResNet-50 by their multiplications; VGG-16 at 40 % of
# the card's 10.97 Tflop/s, as for the P100s below; of a step, 2 ms are launches
RESNET101_RATIO = 7.8e9 / 4.09e9
VGG16_EXAMPLE = 6 * 313e6 / (0.4 * 10.97e12)

# --- HierSGD: IBM Minsky servers with P100s -------------------------------------------

# Not published: 40 % of a P100's 10.6 Tflop/s, and 2 ms of launches
P100_FLOPS, LAUNCHES = 0.4 * 10.6e12, 2e-3
MINSKY_MULTIPLICATIONS = {"vgg16": 313e6, "nin": 223e6, "convnet": 19e6}
# a message between nodes goes through both hosts, one transfer after the other
MINSKY_NETWORK = Link(latency=20e-6, bandwidth=3e9, topology="tree")

PCIE = Link(latency=20e-6, bandwidth=10e9)  # assumed: 3.0 x16 and its software
NVLINK = Link(latency=10e-6, bandwidth=40e9)  # assumed: two NVLink 1.0 per pair


def gpus_and_cpus(
    gpus: int, cpus: int, batch: int, seconds: tuple[float, float], link: Link = PCIE
) -> Machine:
    """Return RTX 4090s and EPYC 7543s that take these `seconds` for a batch."""

    def workers(number: int, name: str, time: float) -> list[Profile]:
        cost = Cost(0.0, time / batch)
        names = [name] if number == 1 else [f"{name}:{k}" for k in range(number)]
        return [Profile(each, name, cost) for each in names]

    of_gpus = workers(gpus, "rtx4090", seconds[0])
    of_cpus = workers(cpus, "epyc7543", seconds[1])
    return Machine("", (*of_gpus, *of_cpus), {"": link})


def _biased(gpus: int, cpus: int, model: str) -> Machine:
    """Return the machine of Biased Local SGD with a model's step times."""
    if model in TABLE7:
        batch, gpu, cpu, sync = TABLE7[model]
        # a ring of n takes 2 (n - 1) L; the measured time includes transfers, and is
        # assumed to be the same for more workers
        link = Link(latency=sync / (2 * (gpus + cpus - 1)), bandwidth=1e30)
        return gpus_and_cpus(gpus, cpus, batch, (gpu, cpu), link)
    share = ESTIMATED[model] / WRN_FLOPS
    fast, slow = share * RTX4090_SECONDS, share * EPYC7543_SECONDS
    return gpus_and_cpus(gpus, cpus, WRN_BATCH, (fast, slow))


def _titan_x(gpus: int, model: str) -> Machine:
    """Return equal GPUs; published rates determine a merge of ResNet-32 on eight."""
    link, curve = PCIE, ()
    if model == "resnet32":
        step = RESNET32_BATCH / TITAN_X_RATE
        examples = (1 - RESNET32_FIXED) * step / RESNET32_BATCH
        cost, curve = Cost(RESNET32_FIXED * step, examples), RESNET32_CURVE
        sync = RESNET32_BATCH / TITAN_X_SYNC_RATE - step
        link = Link(latency=sync / 14, bandwidth=1e30)  # a ring of eight takes 14 L
    elif model == "lenet":
        cost = Cost(LENET_SECONDS, 0.0)
    elif model == "vgg16":
        cost = Cost(LAUNCHES, VGG16_EXAMPLE)
    else:
        alone = RESNET50_SECONDS / RESNET50_LEARNERS - LAUNCHES
        ratio = RESNET101_RATIO if model == "resnet101" else 1.0
        cost = Cost(LAUNCHES, ratio * alone / RESNET50_BATCH)
    workers = tuple(
        Profile(f"gpu{k}", "titanx", cost, device=f"gpu{k}", curve=curve)
        for k in range(gpus)
    )
    return Machine("", workers, {"": link})


def _minsky(model: str) -> Machine:
    """Return 32 nodes of four P100s with a model's step time."""
    cost = Cost(LAUNCHES, 6 * MINSKY_MULTIPLICATIONS[model] / P100_FLOPS)
    nodes = [f"node{index:02d}" for index in range(32)]
    workers = tuple(
        Profile(f"{node}/gpu{gpu}", "p100", cost, place=(node,))
        for node in nodes
        for gpu in range(4)
    )
    return Machine("", workers, {"": MINSKY_NETWORK} | dict.fromkeys(nodes, NVLINK))


def build(name: str) -> Machine | None:
    """Return the named machine without noise; None if it is not one of `NAMES`."""
    machine, _, model = name.rpartition("-")
    if name not in NAMES:
        return None
    if machine in ("titanx1", "titanx8"):
        return _titan_x(int(machine[-1]), model)
    if machine == "minsky32x4":
        return _minsky(model)
    gpus, cpus = (1, 1) if machine == "rtx4090+epyc7543" else (8, 2)
    return _biased(gpus, cpus, model)


_BIASED = ("resnet20", "wrn16", "wrn28", "vit", "distilbert")
NAMES = (
    *(f"rtx4090+epyc7543-{model}" for model in _BIASED),
    *(f"rtx4090x8+epyc7543x2-{model}" for model in _BIASED),
    *(f"titanx1-{model}" for model in ("lenet", "resnet32", "vgg16")),
    *(f"titanx8-{model}" for model in ("resnet32", "vgg16", "resnet50", "resnet101")),
    *(f"minsky32x4-{model}" for model in MINSKY_MULTIPLICATIONS),
)
