"""A member that was started: when it is there, and on which device."""

from hetjax.engine.capabilities import Unreachable
from hetjax.runtimes.cluster.messages import ActorDevice
from hetjax.runtimes.cluster.node_slots import Slot, platform_of
from hetjax.runtimes.cluster.remote_calls import HEALTH, RemoteActor

START = 120.0  # [s] in which a member must have started


def about_of(name: str, place: Slot, member: RemoteActor) -> ActorDevice:
    """Wait for a member that was started; a ValueError says why it was not."""
    (future,) = member.call("about", queue=HEALTH)
    try:
        about: ActorDevice = future.result(timeout=START)
    except TimeoutError:
        raise ValueError(
            f"the process of {name} did not start on {place.node.name} within "
            f"{START:g} s: other programs may have the {dict(place.resources)} that it "
            "waits for (`ray status` tells)"
        ) from None
    except (Unreachable, ImportError) as error:
        raise ValueError(
            f"the process of {name} did not start on {place.node.name}: {error}"
        ) from error
    if platform_of(place.resources) is None and about.platform == "cpu":
        raise ValueError(
            f"{name} was given {dict(place.resources)}, but JAX finds only a CPU on "
            f"{place.node.name}: install jax for its accelerator there (such as "
            "hetjax[cuda12])"
        )
    return about
