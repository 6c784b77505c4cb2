"""Layouts: under which names a model's tensors are published, and where they belong."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.models.pretrained.tensors import Tensors

# PyTorch's names of a layer's arrays, and flax's
_KERNEL = {"weight": "kernel", "bias": "bias"}
_NORM = {"weight": "scale", "bias": "bias"}
LEAVES = {
    "dense": _KERNEL,
    "conv": _KERNEL,
    "layer_norm": _NORM,
    "batch_norm": _NORM | {"running_mean": "mean", "running_var": "var"},
    "embedding": {"weight": "embedding"},
}
PARTS = 3  # of a layer that is published as several: q, k and v


class Rule(NamedTuple):
    """Where a layer, or an array without a layer, belongs.

    `path` may refer to groups of the pattern, or be a function of the match. Where
    several layers become one, those of q, k and v, paths end in #0, #1 and #2.
    """

    pattern: str  # of the layer's whole name
    path: str | Callable[[re.Match], str]
    kind: str  # a key of LEAVES, or "array"


class Layout(NamedTuple):
    """One way in which a model is published."""

    name: str
    known_by: str  # pattern of a tensor that only this layout has
    rules: Sequence[Rule]
    ignored: str  # pattern of tensors that the model has no place for
    # (tensors by path, config.json) -> arguments of the factory
    settings: Callable[[Tensors, dict[str, Any]], dict[str, Any]]
    factory: Callable[..., Any]


def recognise(names: Sequence[str], layouts: Sequence[Layout]) -> Layout:
    """The layout of these names; a ValueError if it is none of them."""
    for layout in layouts:
        if any(re.fullmatch(layout.known_by, name) for name in names):
            return layout
    if all(name.startswith("module.") for name in names):
        raise ValueError(
            'the names of its tensors begin with "module.", as of PyTorch\'s '
            "DataParallel: write them without it"
        )
    some = ", ".join(sorted(names)[:5])
    known = "; ".join(layout.name for layout in layouts)
    raise ValueError(
        f"the names of its tensors ({some}, ...) are of no known layout: {known}"
    )


def name_of(path: str, names: dict[str, str]) -> str:
    """The file's name of a tensor that is missing, by those of its layer; else ""."""
    layer, _, leaf = path.rpartition("/")
    for leaves in LEAVES.values():
        published = {ours: theirs for theirs, ours in leaves.items()}
        for ours, theirs in published.items():
            sibling = names.get(f"{layer}/{ours}", "")
            if leaf in published and sibling.endswith(f".{theirs}"):
                return sibling.removesuffix(theirs) + published[leaf]
    return ""


def by_path(tensors: Tensors, layout: Layout) -> tuple[Tensors, dict[str, str]]:
    """The tensors by their paths in the module, as flax lays them out, and their names.

    Errors: a ValueError for a name that the layout does not have.
    """
    found: Tensors = {}
    names: dict[str, str] = {}
    for name, array in tensors.items():
        if re.fullmatch(layout.ignored, name):
            continue
        path = next(filter(None, (_place(name, rule) for rule in layout.rules)), None)
        if path is None:
            raise ValueError(
                f"{layout.name} has no tensor {name!r}, which is in the file"
            )
        found[path], names[path] = _as_in_flax(path, array), name
    return _join_parts(found, names), names


def _place(name: str, rule: Rule) -> str | None:
    """The path of a tensor, if the rule is about it; #0 stays at the end."""
    layer, _, leaf = name.rpartition(".")
    if rule.kind == "array":
        layer, leaves = name, None
    elif leaf not in (leaves := LEAVES[rule.kind]):
        return None
    match = re.fullmatch(rule.pattern, layer)
    if match is None:
        return None
    path = rule.path(match) if callable(rule.path) else match.expand(rule.path)
    if leaves is None:
        return path
    path, mark, part = path.partition("#")
    return f"{path}/{leaves[leaf]}{mark}{part}"


def _as_in_flax(path: str, array: np.ndarray) -> np.ndarray:
    """Kernels are [out, in, ...] in PyTorch, and [..., in, out] in flax."""
    if not re.search(r"/kernel(#\d)?$", path):
        return array
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def _join_parts(found: Tensors, names: dict[str, str]) -> Tensors:
    """Parts path#0, path#1 and path#2 side by side along the last axis.

    Errors: a ValueError, with the file's names, unless all are there and of one shape.
    """
    whole = {path: array for path, array in found.items() if "#" not in path}
    parts: dict[str, list[str]] = {}
    for path in sorted(found.keys() - whole.keys()):
        parts.setdefault(path.partition("#")[0], []).append(path)
    for path, each in parts.items():
        there = ", ".join(names[part] for part in each)
        if len(each) != PARTS:
            raise ValueError(f"of {PARTS} tensors for {path} there are only {there}")
        if len({found[part].shape for part in each}) > 1:
            raise ValueError(f"the shapes of {there} differ")
        whole[path] = np.concatenate([found[part] for part in each], -1)
    return whole


def shape_of(tensors: Tensors, path: str, axes: int) -> tuple[int, ...]:
    """The shape of the tensor at a path; a ValueError unless it has so many axes."""
    shape = tensors[path].shape
    if len(shape) != axes:
        raise ValueError(f"the tensor for {path} is {list(shape)}, not of {axes} axes")
    return shape


def count(tensors: Tensors, pattern: str) -> int:
    """How many different values the pattern's group has at the starts of paths."""
    matches = (re.match(pattern, path) for path in tensors)
    return len({match[1] for match in matches if match})
