"""Parts of a run that can be saved between two events and taken up again (host).

A class names what changes in its objects during a run. What they are made from
(workers, topology, settings) is not saved: a run that is taken up again makes it anew.
"""

import hashlib
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

LONGEST = 225  # bytes of a file name; file systems take 255, and ends are appended


class Leaves(list):
    """Arrays of a model, which a part saves, and itself puts on a device when it loads.

    Others come back as they were, NumPy's or JAX's; these come back as NumPy's.
    """


class Checkpointable:
    """A part of a run: `save` returns what changes in it, `load` takes it up again.

    `changes` are the names of these attributes. Their values are plain: numbers,
    strings, containers, named tuples, dataclasses, arrays, NumPy generators (see
    `hetjax.checkpoint.values`), or parts themselves. The values that `save` returns are
    those of the part, not copies: they must be encoded before the run goes on.
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
        """Continue from the values that `save` returned."""
        for name in self.changes:
            part = getattr(self, name)
            if isinstance(part, Checkpointable):
                part.load(saved[name])
            else:
                setattr(self, name, saved[name])


def before_of(path: Path) -> Path:
    """What a run's file is called from when it is replaced until the next checkpoint.

    If there will be none, the run goes on from the last one, and with this file.
    """
    return path.with_name(f".{shortened(path.name)}.before")


def file_name(text: str, safe: str = "") -> str:
    """A user's name as that of a file: "a/b" is "a%2Fb", as in a URL; see `shortened`.

    `safe` are the characters that stay, besides letters, digits, and "_.-~".
    """
    return shortened(quote(text, safe=safe, errors="surrogatepass"))


def shortened(name: str) -> str:
    """The file name, or its beginning and its hash if it is too long for a file."""
    encoded = name.encode(errors="surrogateescape")
    if len(encoded) <= LONGEST:
        return name
    begin = encoded[:100].decode(errors="ignore")
    return f"{begin}-{hashlib.sha256(encoded).hexdigest()[:32]}"
