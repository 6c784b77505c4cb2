"""`make_run`: a whole run as a pure function of its key and settings."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.arguments import Seed, checked
from hetjax.data.dataset import Dataset
from hetjax.data.device_rows import device_bytes
from hetjax.engine.device_data import rows_on
from hetjax.engine.job import Job
from hetjax.engine.programs.coupling import check_uncoupled
from hetjax.engine.programs.task_programs import Programs
from hetjax.machine import Machine
from hetjax.made_of import are_same
from hetjax.replica import Requires
from hetjax.report.schedule_table import Schedule
from hetjax.runtimes.compiled.player_choice import num_lanes
from hetjax.runtimes.compiled.program_parts import Parts, parts_of
from hetjax.runtimes.compiled.run_function import play_run, rate_dtype
from hetjax.runtimes.compiled.scheduled_run import ScheduledRun, schedule_run
from hetjax.runtimes.devices import default_device
from hetjax.strategies.types import Strategy
from hetjax.tasks.task_checks import model_like
from hetjax.tasks.types import Task
from hetjax.tree import PyTree

_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class RunFunction:
    """A run as a pure function: see `make_run`."""

    def __init__(
        self,
        task: Task,
        strategy: Strategy,
        make: Callable[..., Strategy] | None,
        written: ScheduledRun,
        source: Any,
        batches: Any,
        job: Job,
    ):
        """`make(**settings)` makes the strategy anew; None if it has no factory."""
        self._task, self._strategy, self._make = task, strategy, make
        self._written, self._source = written, source
        self._batches, self._job = batches, job
        self._jitted = jax.jit(self._played)
        self.schedule = Schedule.of(written.lines)

    def __repr__(self) -> str:
        return f"Run of {self._strategy.name}\n{self.schedule}"

    def __call__(
        self,
        key: jax.Array | None = None,
        params: PyTree = None,
        *,
        learning_rate: Any = None,
        **settings: Any,
    ) -> tuple[dict[str, Any], PyTree]:
        """Train; return (evaluations, (params, model_state))."""
        key = jax.random.key(self._job.seed) if key is None else _typed(key)
        _check_numbers(settings)
        evaluations, model = self._jitted(
            self._source.arrays,
            self._batches,
            key,
            None if params is None else model_like(self._task, params),
            self._rate(learning_rate),
            settings,
        )
        return {"seconds": self._written.seconds, **evaluations}, model

    def _rate(self, learning_rate: Any) -> Any:
        """Return the factor of all learning rates."""
        base = self._strategy.learning_rate
        constant = isinstance(base, int | float)
        if learning_rate is None:
            return base if constant else 1.0
        own = self._strategy.settings.get("learning_rate", 0) is None
        if own or not constant:
            where = "in its optimizer" if own else "a function of the examples"
            raise ValueError(
                f"learning_rate of {self._strategy.name} is {where} and cannot be set "
                "per run; make the strategy with a number"
            )
        if jnp.shape(learning_rate):
            raise ValueError(
                f"learning_rate has shape {jnp.shape(learning_rate)}; pass a number; "
                "use jax.vmap for several"
            )
        return learning_rate

    def _played(
        self, arrays: Any, batches: Any, key: Any, model: Any, rate: Any, settings: Any
    ) -> tuple[dict[str, jax.Array], PyTree]:
        if model is None:
            model = self._task.init(key)
        return play_run(
            self._written,
            self._parts(settings),
            self._source.batch_maker,
            arrays,
            batches,
            key,
            model,
            jnp.asarray(rate, rate_dtype(model)),
        )

    def _parts(self, settings: Mapping[str, Any]) -> Parts:
        """Return the parts of the strategy made with traced settings."""
        parts = self._written.parts
        if not settings:
            return parts
        return parts_of(
            self._job,
            self._made(settings),
            parts.num_workers,
            parts.num_nodes,
            vmapped=parts.vmapped,
            programs=Programs(self._task),  # not cached, as they have traced values
        )

    def _made(self, settings: Mapping[str, Any]) -> Strategy:
        """Return the strategy with other settings; check its schedule."""
        name, names = self._strategy.name, ", ".join(settings)
        if self._make is None:
            raise ValueError(
                f"{name}: settings ({names}) need a factory, but no factory made this "
                "strategy; pass make_run a function of settings that returns it"
            )
        try:
            strategy = self._make(**settings)
        except _TRACED as error:
            raise ValueError(
                f"{name}: a part of the strategy branches on the value of {names}, "
                "which is traced in a run as a function; pass it to the factory"
            ) from error
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name}: {names} as a setting of a run: {error}"
            ) from error
        same = all(
            are_same(getattr(strategy, part), getattr(self._strategy, part))
            for part in ("policy", "sampler", "batch_size")
        )
        if not same or _fixed(strategy) != _fixed(self._strategy):
            raise ValueError(
                f"{name}: {names} would change the schedule, which is fixed: only "
                "numbers of merges and the local update can be settings of a run; pass "
                "make_run a strategy made with this setting"
            )
        return strategy


def _fixed(strategy: Strategy) -> list[Any]:
    """Return the attributes of merges and local update that determine the schedule."""
    of_merges = [
        (
            _names(m.requires),
            m.ops,
            m.updates_busy_workers,
            m.required_metrics,
        )
        for m in strategy.merges
    ]
    return [*of_merges, strategy.local.provides]


def _names(requires: Requires) -> list[str]:
    return [b if isinstance(b, str) else b.name for b in requires]


def _check_numbers(settings: Mapping[str, Any]) -> None:
    """Raise a ValueError for a setting that JAX cannot trace."""
    for name, value in settings.items():
        for leaf in jax.tree.leaves(value):
            number = isinstance(leaf, int | float | np.generic | np.ndarray | jax.Array)
            if not number or isinstance(leaf, bool):
                raise ValueError(
                    f"{name}={value!r}: settings of a run must be numbers, arrays or "
                    "trees of them; pass this one to the strategy"
                )


def _typed(key: Any) -> jax.Array:
    """Return a typed key, also for a raw key of `jax.random.PRNGKey`."""
    if not isinstance(key, jax.Array):
        raise ValueError(f"key={key!r}: pass a key, such as jax.random.key(0)")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)


@checked
def make_run(
    task: Task,
    data: Dataset,
    machine: Machine,
    strategy: Strategy | Callable[..., Strategy],
    *,
    seconds: float,
    num_evals: int = 50,
    seed: Seed = 0,
    eval_examples: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> RunFunction:
    """Return a whole run on a simulated machine as a pure function.

        run(key=None, params=None, *, learning_rate=None, **settings)
        -> (evaluations, (params, model_state))

    It can be jitted, mapped over keys and settings (`jax.vmap`), and differentiated
    (`jax.grad`), for example the final loss of an asynchronous run with respect to its
    learning rate.

    `make_run` writes the schedule: it depends on the machine, the policy and the
    sampler, with the clock's noise and the order of examples drawn from `seed`.
    `run.schedule` is displayed as a table. The other arguments are those of `train`.

    `key`, of `jax.random.key`, makes the initial parameters (`task.init(key)`) and the
    keys of all steps; the default is that of `seed`. `run(jax.random.key(seed))` equals
    `train(..., seed=seed)` up to rounding. `params`, or a pair (params, model_state),
    replaces the initial ones.

    `learning_rate` replaces the strategy's constant learning rate in local steps (times
    the policy's factor of a round) and in merges. `settings` are numbers of the
    strategy's merges and local update, named like its factory's arguments: `alpha` of
    `sma`, `momentum` of `local_sgd`. Settings that would change the schedule, such as
    `batch_size` and `local_steps`, are errors. `strategy` may also be a function of
    settings that returns a strategy; the schedule is then that of the `settings` passed
    to `make_run`, each of which is a number, an array or a tree:

        def strategy(weights):
            mean = hj.merge.average(weights=lambda stats: weights)
            return hj.local_sgd(batch_size=32, learning_rate=0.1)._replace(merge=mean)

        run = hj.make_run(..., strategy, settings={"weights": jnp.ones(4)}, seconds=1)
        jax.grad(lambda w: run(weights=w)[0]["loss"][-1])(jnp.ones(4))

    `evaluations` is a dict of arrays [num_evals + 1]: "seconds", "loss", the task's
    metrics, and the counters of the merge. (params, model_state) is the model at the
    last evaluation. A run that diverges continues with NaN to its end.

    Memory of the reverse pass: all E events of a run are one `lax.scan`, in sqrt(E)
    blocks of sqrt(E) events. `jax.checkpoint` stores the replicas and the states of
    merges at the start of each block, and before each event of the block in progress:
    2 sqrt(E) copies, and the intermediates of one event. A gradient takes about four
    times as long as the run. Replicas have the dtypes of `task.init`. With float64
    parameters (`jax.enable_x64`), learning rates are float64, but evaluations float32.

    Errors: a ValueError, before anything is compiled, for a sampler that observes
    losses (`biased_local_sgd`, unless sampler="uniform"), for a policy that reads
    evaluations (`sma` with restart="on_plateau"), for a training split that is not in
    memory, and for a run that ends early. `run` raises it for a setting that is unknown
    or would change the schedule, and for parameters that are not the task's.

    >>> import hetjax as hj
    >>> import jax
    >>> data = hj.data.digits()
    >>> task = hj.classification(hj.models.mlp(hidden=4), data)
    >>> strategy = hj.async_sgd(batch_size=16, learning_rate=0.1)
    >>> machine = hj.machine.preset("v100x2")
    >>> run = hj.make_run(task, data, machine, strategy, seconds=0.02, num_evals=2)
    >>> evaluations, (params, model_state) = run(jax.random.key(1), learning_rate=0.2)
    >>> evaluations["accuracy"].shape
    (3,)
    """
    make = None
    if isinstance(strategy, Strategy):
        make = strategy.factory
    elif callable(strategy):
        make, strategy = strategy, strategy(**(settings or {}))
    name = getattr(strategy, "name", "strategy")
    if not isinstance(machine, Machine):
        raise ValueError(
            f"machine is a {type(machine).__name__}: pass a simulated machine, such as "
            "hj.machine.preset('v100x3+k80')"
        )
    config = RunConfig(
        seconds=seconds, num_evals=num_evals, eval_examples=eval_examples
    )
    session = Session(task, data, machine, config)
    session.check_strategies({name: strategy})
    if device_bytes(data.train) is None:
        raise ValueError(
            f"{data.name}: the training split is not in memory, so that it cannot be "
            "copied to the device; use hj.train"
        )
    check_uncoupled(session.programs, data)
    constant = isinstance(strategy.learning_rate, int | float)
    relative = {**strategy._asdict(), "learning_rate": 1.0} if constant else {}
    job = session.job(name, strategy, seed)
    source = rows_on(job, None)
    workers = len(machine.workers)
    lanes = num_lanes(job, strategy, workers, default_device())
    written = schedule_run(
        Strategy(**relative) if constant else strategy,
        job,
        machine,
        source,
        lanes=lanes,
    )
    batches = list(job.test), list(job.held_out)
    return RunFunction(task, strategy, make, written, source, batches, job)
