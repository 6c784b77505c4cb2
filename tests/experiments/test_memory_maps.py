"""Programs are freed before a process has too many memory maps."""

import jax
import pytest

from experiments.common import memory_maps


@pytest.mark.skipif(not memory_maps.MAPS.exists(), reason="needs Linux's /proc")
def test_programs_are_freed_if_there_are_too_many_maps():
    compiled = []

    @jax.jit
    def program(x):
        compiled.append(x)
        return x + 1

    program(1.0)
    assert not memory_maps.free_programs(10**9)
    program(1.0)
    assert len(compiled) == 1
    assert memory_maps.free_programs(1)
    program(1.0)
    assert len(compiled) == 2
