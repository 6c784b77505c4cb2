"""Frees compiled programs in time, in processes that make thousands of them.

Each program takes several memory maps, of which Linux lets a process have 65,530 by
default (vm.max_map_count). At the limit XLA ends the process.
"""

import gc
from pathlib import Path

import jax

MAPS = Path("/proc/self/maps")
MOST_MAPS = 30_000


def free_programs(most: int = MOST_MAPS) -> bool:
    """Free all compiled programs if there are more maps; whether it did.

    Those that are still used are compiled again.
    """
    if not MAPS.exists() or MAPS.read_bytes().count(b"\n") <= most:
        return False
    jax.clear_caches()
    gc.collect()
    return True
