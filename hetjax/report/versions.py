"""The versions of the packages on which results depend."""

import platform
from importlib import metadata

PACKAGES = ("hetjax", "jax", "jaxlib", "numpy")
EXTRAS = ("ray",)  # included if they are installed


def installed_version(package: str = "hetjax") -> str:
    """The version of an installed package; "unknown" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def installed_versions() -> dict[str, str]:
    """The versions of these packages, and of Python."""
    found = {package: installed_version(package) for package in PACKAGES}
    extras = {package: installed_version(package) for package in EXTRAS}
    found |= {package: v for package, v in extras.items() if v != "unknown"}
    return {**found, "python": platform.python_version()}


def joined_versions(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    """The versions of packages in two comparisons; both if they differ."""
    names = {**one, **other}
    found = {n: dict.fromkeys(v[n] for v in (one, other) if n in v) for n in names}
    return {name: " and ".join(versions) for name, versions in found.items()}
