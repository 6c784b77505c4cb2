"""Scripts define flags of the same names: one of them at a time has its own."""

import contextlib
import itertools
import sys
from pathlib import Path
from typing import NamedTuple

from absl import flags

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


class Parts(NamedTuple):
    """What scripts define: flags by module, and modules."""

    flags: dict
    modules: dict


@contextlib.contextmanager
def no_scripts():
    """Without the scripts that were imported before, which are there again after it."""
    others = take_out()
    try:
        yield
    finally:
        take_out()
        put_in(others)


def take_out():
    """Forget all scripts, and return what they have defined."""
    by_module = flags.FLAGS.flags_by_module_dict()
    defined = {k: list(v) for k, v in by_module.items() if not k.startswith("absl")}
    modules = {
        name: module
        for name, module in sys.modules.items()
        if (getattr(module, "__file__", None) or "").startswith(str(EXPERIMENTS))
    }
    for flag in itertools.chain(*defined.values()):
        delattr(flags.FLAGS, flag.name)
    for name in modules:
        del sys.modules[name]
    return Parts(defined, modules)


def put_in(parts):
    """Undo `take_out`."""
    for module, found in parts.flags.items():
        for flag in found:
            flags.FLAGS[flag.name] = flag
            flags.FLAGS.register_flag_by_module(module, flag)
    sys.modules.update(parts.modules)
