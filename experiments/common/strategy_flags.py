"""Strategies from flags: names, common settings, and per-strategy settings."""

import ast
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

import hetjax as hj


def build_strategies(
    names: Sequence[str],
    assignments: Sequence[str],
    batch_size: int,
    learning_rate: hj.schedule.LearningRateLike,
) -> dict[str, hj.Strategy]:
    """Build the named strategies; an assignment is "name.setting=value".

    Those of a flag file for strategies that are not named are left out, with a note.
    """
    own: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name in names:
        if name not in hj.STRATEGIES:
            known = ", ".join(hj.STRATEGIES)
            raise ValueError(f"--strategies: unknown strategy {name!r}; known: {known}")
    left_out = [a for a in assignments if _is_of_file_for_others(a, own)]
    if left_out:
        print(
            f"left out, since --strategies does not name them: {', '.join(left_out)}",
            file=sys.stderr,
        )
    for assignment in assignments:
        if assignment in left_out:
            continue
        name, setting, value = _parse(assignment, own)
        own[name][setting] = value
    return {name: _build(name, own[name], batch_size, learning_rate) for name in names}


def _build(
    name: str,
    own: dict[str, Any],
    batch_size: int,
    learning_rate: hj.schedule.LearningRateLike,
) -> hj.Strategy:
    common = {"batch_size": batch_size, "learning_rate": learning_rate}
    try:
        return hj.STRATEGIES[name](**{**common, **own})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _is_of_file_for_others(assignment: str, chosen: dict[str, Any]) -> bool:
    """Whether a flag file, not the command itself, sets another strategy's setting."""
    name = assignment.partition(".")[0]
    typed = any(argument.endswith(assignment) for argument in sys.argv[1:])
    return name in hj.STRATEGIES and name not in chosen and not typed


def _parse(assignment: str, chosen: dict[str, Any]) -> tuple[str, str, Any]:
    left, equals, text = assignment.partition("=")
    name, dot, setting = left.partition(".")
    if not (equals and dot):
        raise ValueError(f"--set={assignment}: write strategy.setting=value")
    if name not in chosen:
        raise ValueError(
            f"--set={assignment}: {name!r} is not among --strategies; those are "
            f"{', '.join(chosen)}"
        )
    hints = typing.get_type_hints(hj.STRATEGIES[name])
    hints.pop("return")
    if setting not in hints:
        raise ValueError(
            f"--set={assignment}: {name} has no setting {setting!r}; it has "
            f"{', '.join(hints)}"
        )
    return name, setting, _value(assignment, text, hints[setting])


def _value(assignment: str, text: str, hint: Any) -> Any:
    """Convert the text to one of the plain types in the setting's annotation."""
    kinds = _plain_types(hint)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = text
    if isinstance(value, int) and not isinstance(value, bool) and int not in kinds:
        value = float(value) if float in kinds else value
    if isinstance(value, tuple) and _takes_tuples(hint):
        return value  # the strategy checks what is in it
    if type(value) not in kinds:
        names = " or ".join(k.__name__ for k in kinds) or "none that a flag can give"
        raise ValueError(
            f"--set={assignment}: {text!r} is not of the setting's type ({names})"
        )
    return value


def _plain_types(hint: Any) -> list[type]:
    """The plain types in an annotation, such as int and str of `int | Literal["a"]`."""
    if hint in _PLAIN:
        return [hint]
    if typing.get_origin(hint) is typing.Literal:
        return list(dict.fromkeys(type(choice) for choice in typing.get_args(hint)))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return [kind for part in typing.get_args(hint) for kind in _plain_types(part)]
    return []


def _takes_tuples(hint: Any) -> bool:
    """Whether an annotation has a sequence type, such as a number for each level."""
    parts = (hint, *typing.get_args(hint))
    return any(typing.get_origin(part) in (Sequence, tuple) for part in parts)


_PLAIN = (int, float, bool, str, type(None))
