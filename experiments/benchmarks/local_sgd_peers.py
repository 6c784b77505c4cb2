"""Rounds of local SGD without hetjax: hand-written JAX, FedJAX, DrJAX, PyTorch.

Each function `*_rounds` returns a function that runs a round, waits for it, and returns
its seconds. Models and data of these benchmarks are here, too.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hetjax as hj

RATE = 0.01
SIZES = (784, 128, 64, 10)
SMALL = (64, 16, 10)
EXAMPLES = 4096


def _dense(key: jax.Array, n: int, m: int) -> tuple[jax.Array, jax.Array]:
    return jax.random.normal(key, (n, m)) * np.sqrt(2 / n), jnp.zeros(m)


def mlp_init(key: jax.Array, sizes: Sequence[int] = SIZES) -> Any:
    """Parameters of an MLP of these layers, by default 784-128-64-10."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [_dense(k, n, m) for k, n, m in zip(keys, sizes, sizes[1:], strict=False)]


def mlp_apply(params: Any, x: jax.Array) -> jax.Array:
    """Return the logits."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b[None])
    w, b = params[-1]
    return x @ w + b[None]


def cnn_init(key: jax.Array) -> Any:
    """Parameters of conv 5x5x16, pool, conv 5x5x32, pool, fc 64, fc 10."""
    keys = jax.random.split(key, 4)
    first = jax.random.normal(keys[0], (5, 5, 1, 16)) * 0.2
    second = jax.random.normal(keys[1], (5, 5, 16, 32)) * 0.07
    return [
        (first, jnp.zeros(16)),
        (second, jnp.zeros(32)),
        _dense(keys[2], 7 * 7 * 32, 64),
        _dense(keys[3], 64, 10),
    ]


def _pool(x: jax.Array) -> jax.Array:
    """2x2 max-pooling: reshape and max is faster than reduce_window on a CPU."""
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))


def cnn_apply(params: Any, x: jax.Array) -> jax.Array:
    """Return the logits of images [B, 28, 28, 1]."""
    for w, b in params[:2]:
        x = jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = _pool(jax.nn.relu(x + b[None, None, None]))
    x = x.reshape(x.shape[0], -1)
    (w, b), (v, c) = params[2:]
    return jax.nn.relu(x @ w + b[None]) @ v + c[None]


MODELS = {
    "mlp": (mlp_init, mlp_apply),
    "mlp64": (partial(mlp_init, sizes=SMALL), mlp_apply),
    "cnn": (cnn_init, cnn_apply),
}
SHAPES = {"mlp": SIZES[:1], "mlp64": SMALL[:1], "cnn": (28, 28, 1)}  # of an example


def make_data(name: str, seed: int) -> hj.data.Dataset:
    """Random images; the test split is one batch, so that evaluation is cheap."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(EXAMPLES, *SHAPES[name])).astype(np.float32)
    y = rng.integers(10, size=EXAMPLES)
    return hj.data.from_arrays((x, y), (x[:32], y[:32]), num_classes=10, name=name)


def loss_of(name: str) -> Callable[[Any, jax.Array, jax.Array], jax.Array]:
    """The mean cross-entropy of a batch: (params, x, y) -> loss."""
    apply = MODELS[name][1]

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = apply(params, x)
        picked = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    return loss


def _timed(run: Callable[[], Any]) -> Callable[[], float]:
    def seconds() -> float:
        began = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - began

    return seconds


def jax_rounds(
    name: str, data: Any, k: int, t: int, b: int, variant: str
) -> Callable[[], float]:
    """Hand-written JAX, worker by worker; steps in a scan, unrolled, or dispatched."""
    loss = loss_of(name)
    x, y = jnp.asarray(data.train.x), jnp.asarray(data.train.y)
    params = MODELS[name][0](jax.random.key(0))
    rng = np.random.default_rng(0)

    def step(p: Any, rows: jax.Array) -> Any:
        g = jax.grad(loss)(p, x[rows], y[rows])
        return jax.tree.map(lambda w, d: w - RATE * d, p, g)

    def mean(replicas: list[Any]) -> Any:
        return jax.tree.map(lambda *ws: sum(ws) / k, *replicas)

    def local(p: Any, rows: jax.Array) -> Any:
        unroll = t if variant == "unrolled" else 1
        return jax.lax.scan(lambda p, r: (step(p, r), None), p, rows, unroll=unroll)[0]

    def whole_round(p: Any, rows: jax.Array) -> Any:
        def worker(total: Any, own: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, local(p, own)), None

        zeros = jax.tree.map(jnp.zeros_like, p)
        total, _ = jax.lax.scan(worker, zeros, rows)
        return jax.tree.map(lambda s: s / k, total)

    one_step = jax.jit(step, donate_argnums=0)
    all_local = jax.jit(local)
    merged = jax.jit(mean)
    copied = jax.jit(lambda p: jax.tree.map(jnp.copy, p))
    at_once = jax.jit(whole_round)

    def run() -> Any:
        nonlocal params
        rows = rng.integers(len(data.train), size=(k, t, b))
        if variant == "scan" and name != "cnn":
            params = at_once(params, rows)
        elif variant == "dispatch":
            replicas = []
            for own in rows:
                p = copied(params)
                for r in own:
                    p = one_step(p, r)
                replicas.append(p)
            params = merged(replicas)
        else:
            params = merged([all_local(params, own) for own in rows])
        return params

    return _timed(run)


def fedjax_rounds(name: str, data: Any, k: int, t: int, b: int) -> Callable[[], float]:
    """FedJAX's federated averaging, each client with T batches."""
    # FedJAX's last release uses a name that JAX has since dropped
    jax.tree_map = jax.tree.map  # pyright: ignore
    fedjax = importlib.import_module("fedjax")

    loss = loss_of(name)

    def grad_fn(params: Any, batch: Any, rng: Any) -> Any:
        del rng
        return jax.grad(loss)(params, batch["x"], batch["y"])

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        grad_fn,
        fedjax.optimizers.sgd(RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=b, num_epochs=None, num_steps=t),
    )
    state = algorithm.init(MODELS[name][0](jax.random.key(0)))
    share = len(data.train) // k
    sets = [
        fedjax.ClientDataset(
            {
                "x": data.train.x[i * share : (i + 1) * share],
                "y": data.train.y[i * share : (i + 1) * share],
            }
        )
        for i in range(k)
    ]
    rngs = jax.random.split(jax.random.PRNGKey(0), k)

    def run() -> Any:
        nonlocal state
        clients = [(b"%d" % i, sets[i], rngs[i]) for i in range(k)]
        state, _ = algorithm.apply(state, clients)
        return state.params

    return _timed(run)


def drjax_rounds(name: str, data: Any, k: int, t: int, b: int) -> Callable[[], float]:
    """DrJAX: broadcast, map over the clients (vmapped), reduce."""
    drjax = importlib.import_module("drjax")

    loss = loss_of(name)
    x, y = jnp.asarray(data.train.x), jnp.asarray(data.train.y)
    params = MODELS[name][0](jax.random.key(0))
    rng = np.random.default_rng(0)

    def local(p: Any, rows: jax.Array) -> Any:
        def step(p: Any, r: jax.Array) -> tuple[Any, None]:
            g = jax.grad(loss)(p, x[r], y[r])
            return jax.tree.map(lambda w, d: w - RATE * d, p, g), None

        return jax.lax.scan(step, p, rows)[0]

    @drjax.program(placements={"clients": k})
    def whole_round(p: Any, rows: jax.Array) -> Any:
        return drjax.reduce_mean(drjax.map_fn(local, (drjax.broadcast(p), rows)))

    at_once = jax.jit(whole_round)

    def run() -> Any:
        nonlocal params
        rows = rng.integers(len(data.train), size=(k, t, b))
        params = at_once(params, jnp.asarray(rows))
        return params

    return _timed(run)


def torch_rounds(
    name: str, data: Any, k: int, t: int, b: int, *, threads: int
) -> Callable[[], float]:
    """PyTorch: one worker after the other, plain SGD in place, and a mean."""
    torch = importlib.import_module("torch")
    nn = torch.nn

    images = data.train.x if name == "mlp" else data.train.x.transpose(0, 3, 1, 2)
    x = torch.from_numpy(np.ascontiguousarray(images))
    y = torch.from_numpy(np.asarray(data.train.y, np.int64))
    device = torch.device(torch_device(torch))
    model = (_torch_mlp(nn) if name == "mlp" else _torch_cnn(nn)).to(device)
    x, y = x.to(device), y.to(device)
    loss_fn = nn.CrossEntropyLoss()
    rng = np.random.default_rng(0)
    weights = list(model.parameters())

    def run() -> float:
        torch.set_num_threads(threads)
        began = time.perf_counter()
        rows = rng.integers(len(data.train), size=(k, t, b))
        rows = torch.from_numpy(rows).to(device)
        start = [w.detach().clone() for w in weights]
        total = [torch.zeros_like(w) for w in weights]
        for own in rows:
            with torch.no_grad():
                for w, s in zip(weights, start, strict=True):
                    w.copy_(s)
            for r in own:
                loss = loss_fn(model(x[r]), y[r])
                grads = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    for w, g in zip(weights, grads, strict=True):
                        w.sub_(g, alpha=RATE)
            with torch.no_grad():
                for s, w in zip(total, weights, strict=True):
                    s.add_(w)
        with torch.no_grad():
            for w, s in zip(weights, total, strict=True):
                w.copy_(s / k)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return run


def torch_device(torch: Any) -> str:
    """PyTorch's name of the kind of device that JAX uses by default, if it has it."""
    gpu = jax.default_backend() == "gpu" and torch.cuda.is_available()
    return "cuda" if gpu else "cpu"


def _torch_mlp(nn: Any) -> Any:
    pairs = zip(SIZES, SIZES[1:], strict=False)
    layers = [layer for n, m in pairs for layer in (nn.Linear(n, m), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _torch_cnn(nn: Any) -> Any:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(7 * 7 * 32, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
