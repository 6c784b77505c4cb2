"""Machines on which workers are killed and join at any time, drawn by hypothesis."""

import itertools

from hypothesis import strategies as st

from hetjax.machine import Cost, Link, Machine, Profile, ScriptedFault

END = 20.0  # [s] by then all faults have happened


@st.composite
def machines_with_faults(draw, num_workers, spared):
    """Workers in places; each may be killed and join several times, but for the first.

    The `spared` ones stay; w1 becomes slow.
    """
    faults = []
    for k in range(spared, num_workers):
        times = draw(st.lists(st.floats(0.0, END), max_size=4, unique=True))
        begins = draw(st.sampled_from(("kill", "join")))
        both = itertools.cycle(
            ("kill", "join") if begins == "kill" else ("join", "kill")
        )
        faults += [
            ScriptedFault(t, what, f"w{k}")
            for t, what in zip(sorted(times), both, strict=False)
        ]
    slow = ScriptedFault(
        draw(st.floats(0.0, END)), "slow", "w1", draw(st.floats(0.5, 9.0))
    )
    factors = draw(
        st.lists(st.floats(0.3, 3), min_size=num_workers, max_size=num_workers)
    )
    workers = tuple(
        Profile(
            f"w{k}",
            "gpu",
            Cost(0.5, 0.01),
            factor=factor,
            place=(f"rack{k // 4}", f"node{k // 2}"),
            device=f"d{k // 2}",
            curve=(1.0, 1.5),
        )
        for k, factor in enumerate(factors)
    )
    link = Link(latency=draw(st.sampled_from((0.0, 0.1, 2.0))), bandwidth=1e9)
    everything = (*faults, slow)
    return Machine("m", workers, {"": link}, noise=0.3, faults=everything)
