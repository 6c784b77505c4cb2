"""Bounds of flags, each with its reason, checked before a script does anything."""

from collections.abc import Collection, Iterable, Sequence

from absl import flags

from hetjax.api.value_checks import MOST_EVALS, MOST_SEEDS

# Bounds that several scripts share: (lowest, highest, reason).
EVALS = (1, MOST_EVALS, "a run stores every evaluation")
SEEDS = (1, MOST_SEEDS, "every seed is a separate run, and all are stored")
SEED = (0, 2**31 - 1, "it is the seed of a random generator")
HIDDEN = (1, 1_000_000, "the weights of both layers must fit into memory")
BATCH_SIZE = (1, 1_000_000, "a batch must fit into memory")
DEVICES = (1, 1024, "every device has threads of its own")
LEARNING_RATE = (1e-30, 1e30, "steps must move the model")
MOMENTUM = (0, 1 - 1e-9, "a momentum of 1 never decays")
SECONDS = (1e-9, 10**9, "it is a time that passes")
MILLISECONDS = (1e-6, 1_000_000, "it is a time that passes")


def bounded(name: str, lowest: float, highest: float, why: str) -> None:
    """Refuse values of a flag outside [lowest, highest]; None stands for no value."""
    flags.register_validator(
        name,
        lambda value: value is None or lowest <= value <= highest,  # NaN is refused
        f"pass a number from {lowest:,} to {highest:,}: {why}",
    )


def bounded_list(name: str, lowest: float, highest: float, why: str) -> None:
    """Refuse a list flag unless it has only numbers in [lowest, highest]."""

    def right(texts: Sequence[str]) -> bool:
        try:
            return all(lowest <= float(text) <= highest for text in texts)
        except ValueError:
            return False

    message = f"pass numbers from {lowest:,} to {highest:,}: {why}"
    flags.register_validator(name, right, message)


def numbers(flag: str, texts: Iterable[str]) -> list[float]:
    """The numbers of a list flag; a ValueError names the flag."""
    texts = list(texts)
    try:
        return [float(text) for text in texts]
    except ValueError as error:
        raise ValueError(f"--{flag}={','.join(texts)}: {error}") from error


def named_numbers(flag: str, texts: Iterable[str], form: str) -> dict[str, float]:
    """The named numbers of a list flag; a ValueError explains their format."""
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise ValueError(f"--{flag}={text}: write {form}") from None
    return found


def whole_numbers(flag: str, texts: Iterable[str]) -> list[int]:
    """The whole numbers of a list flag, at least one; a ValueError names the flag."""
    texts = list(texts)
    if not texts or not all(text.strip().isdecimal() for text in texts):
        raise ValueError(f"--{flag}={','.join(texts)}: pass whole numbers, as 1,8")
    return [int(text) for text in texts]


def check_some_of(flag: str, given: Sequence[str], known: Collection[str]) -> None:
    """Raise a ValueError if a list of names has one that is not known."""
    if set(given) - set(known):
        raise ValueError(f"--{flag}={','.join(given)}: pass some of {', '.join(known)}")
