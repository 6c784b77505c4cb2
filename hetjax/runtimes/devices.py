"""The devices of this process, by name or as chosen by the user."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.extend import backend

from hetjax.engine.placement import Device


def all_devices() -> list[Device]:
    """Return every device of this process, of every platform, accelerators first."""
    platforms = sorted(backend.backends(), key=lambda p: (p == "cpu", p))
    return [d for p in platforms for d in jax.local_devices(backend=p)]


def default_device() -> Device:
    """Return the device that JAX uses by default."""
    (device,) = jax.device_put(np.zeros(())).devices()
    return device


def device_name(device: Device) -> str:
    """Return a device's name, such as "cpu:0" or "gpu:1"."""
    return f"{device.platform}:{device.id}"


def chosen_devices(
    devices: Sequence[Device | str], known: Sequence[Device] | None = None
) -> list[Device]:
    """Return the devices; each is a JAX device, or the name of a device or platform.

    `known` are those to choose from, by default all of this process. Errors: ValueError
    for a device that does not exist or is repeated.
    """
    known = all_devices() if known is None else known
    if not isinstance(devices, Sequence):
        raise ValueError(f"devices={devices!r}: pass a list of devices, or their names")
    chosen: list[Device] = []
    for device in [devices] if isinstance(devices, str) else devices:
        found = _named(device, known) if isinstance(device, str) else [device]
        if not found or found[0] not in known:
            names = ", ".join(map(device_name, known))
            raise ValueError(f"there is no device {device!r}; there are: {names}")
        chosen += found
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"devices={devices}: pass every device once")
    return chosen


def simulation_devices(devices: Sequence[Device | str] | None) -> tuple[Device, ...]:
    """Return the devices of one kind over which simulated workers are spread.

    By default these are JAX's default device and all others of its kind. A CPU device
    is used alone, as CPU devices share the cores, and so is a device that the user
    chose with `jax.default_device`.

    Errors: ValueError as in `chosen_devices`, or for devices of several kinds.
    """
    if devices is not None:
        return _of_one_kind(devices)
    first = default_device()
    own = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if first.platform == "cpu" or own is not None:
        return (first,)
    alike = [d for d in jax.local_devices() if d.device_kind == first.device_kind]
    return (first, *(d for d in alike if d != first))


def _of_one_kind(devices: Sequence[Device | str]) -> tuple[Device, ...]:
    chosen = chosen_devices(devices)
    if not chosen:
        raise ValueError(f"devices={devices!r}: pass at least one device, or None")
    kinds = dict.fromkeys(d.device_kind for d in chosen)
    if len(kinds) > 1:
        raise ValueError(
            f"devices={devices!r} are of the kinds {' and '.join(kinds)}: all devices "
            "must be of one kind, as results differ bitwise between kinds"
        )
    return tuple(chosen)


def _named(name: str, known: Sequence[Device]) -> list[Device]:
    """Return the named device, or all of a platform; CUDA and ROCm are "gpu" in JAX."""
    platform, colon, number = name.partition(":")
    platform = "gpu" if platform in ("cuda", "rocm") else platform
    return [
        d
        for d in known
        if d.platform == platform and (not colon or str(d.id) == number)
    ]
