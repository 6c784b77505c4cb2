"""Nested frozen dataclasses as JSON text; errors name the place in the file.

The dataclasses are the format: a field without a default is required, an unknown field
is an error, and each dataclass checks its own numbers and strings.
"""

import dataclasses
import functools
import json
import types
import typing
from pathlib import Path
from typing import Any


def to_json(record: Any) -> str:
    """Return readable JSON text of a dataclass, indented by two spaces."""
    plain = dataclasses.asdict(record)
    # `item` turns NumPy's scalars into Python's.
    text = json.dumps(plain, indent=2, allow_nan=False, default=lambda x: x.item())
    return text + "\n"


def read_json(kind: Any, path: str | Path) -> Any:
    """Read the dataclass `kind` from a file; errors name the file and place."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text, object_pairs_hook=_without_repeats)
        return _decode(kind, data, "")
    except RecursionError:
        raise ValueError(f"{path}: lists or objects are nested too deeply") from None
    except ValueError as error:  # from UTF-8, from JSON's syntax, or from `_decode`
        raise ValueError(f"{path}: {error}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise for a key that appears twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} appears twice in one object")
    return record


def _decode(kind: Any, value: Any, where: str) -> Any:
    """Convert `value`, found at the place `where`, to the type hint `kind`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # X | None
        return None if value is None else _decode(arguments[0], value, where)
    if origin is tuple:  # tuple[X, ...]
        _expect(isinstance(value, list), "a list", value, where)
        items = (_decode(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        return tuple(items)
    if origin is dict:  # dict[str, X]
        _expect(isinstance(value, dict), "an object", value, where)
        inner = arguments[1]
        return {k: _decode(inner, v, f"{where}[{k!r}]") for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, where)
    if kind is float and type(value) is int and abs(value) < 2**64:
        return float(value)
    return value  # a number or a string, which its dataclass checks


_hints = functools.cache(typing.get_type_hints)


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    """Decode a dataclass field by field."""
    _expect(isinstance(value, dict), f"an object (a {kind.__name__})", value, where)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    known = f"a {kind.__name__} has the fields {', '.join(fields)}"
    for name in value:
        if name not in fields:
            raise ValueError(f"{_inside(where, name)}: unknown field; {known}")
    for name, field in fields.items():
        if name not in value and field.default is dataclasses.MISSING:
            raise ValueError(f"{_inside(where, name)}: missing; {known}")
    hints = _hints(kind)
    decoded = {k: _decode(hints[k], v, _inside(where, k)) for k, v in value.items()}
    try:
        return kind(**decoded)
    except ValueError as error:
        raise ValueError(f"{where or 'top level'}: {error}") from None


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _expect(right: bool, expected: str, value: Any, where: str) -> None:
    if not right:
        found = json.dumps(value)
        found = found if len(found) <= 60 else found[:57] + "..."
        raise ValueError(f"{where or 'top level'}: expected {expected}, found {found}")
