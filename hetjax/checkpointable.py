"""Parts of a run whose state can be saved between two events, and restored (host).

A class names the attributes that change during a run. Everything else (workers,
topology, settings) is not saved: a resumed run creates it again.
"""

import hashlib
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

LONGEST = 225  # bytes of a file name; file systems take 255, and ends are appended


class Leaves(list):
    """Arrays of a model, which their owner puts on a device itself when it loads them.

    They are restored as NumPy arrays; any other array keeps its kind, NumPy's or JAX's.
    """


class Checkpointable:
    """A part of a run: `save` returns its state, and `load` restores it.

    `changes` names the attributes that are its state. Their values are plain: numbers,
    strings, containers, named tuples, dataclasses, arrays, NumPy generators (see
    `hetjax.checkpoint.values`), or other such parts. The values that `save` returns are
    not copies: they must be encoded before the run continues.
    """

    changes: ClassVar[tuple[str, ...]] = ()

    def save(self) -> dict[str, Any]:
        """Return the values of all `changes` by name."""
        found = {name: getattr(self, name) for name in self.changes}
        return {
            k: v.save() if isinstance(v, Checkpointable) else v
            for k, v in found.items()
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Restore the values that `save` returned."""
        for name in self.changes:
            part = getattr(self, name)
            if isinstance(part, Checkpointable):
                part.load(saved[name])
            else:
                setattr(self, name, saved[name])


def backup_path(path: Path) -> Path:
    """Return the name of a replaced file of a run until the next checkpoint.

    If there is no next checkpoint, the run continues from the last one with this file.
    """
    return path.with_name(f".{shortened(path.name)}.before")


def file_name(text: str, safe: str = "") -> str:
    """Return a user's name as a file name: "a/b" is "a%2Fb", as in a URL.

    Letters, digits, "_.-~" and the characters in `safe` stay. A long name is
    `shortened`.
    """
    return shortened(quote(text, safe=safe, errors="surrogatepass"))


def shortened(name: str) -> str:
    """Return a file name, or its beginning and its hash if it is too long."""
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) <= LONGEST:
        return name
    begin = encoded[:100].decode(errors="ignore")
    return f"{begin}-{hashlib.sha256(encoded).hexdigest()[:32]}"
