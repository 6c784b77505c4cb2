"""about.json, the description of a cached copy: its sources and checksums.

A description is replaced atomically, and contains its own checksum. It is written last,
so a copy without one is not used.
"""

import json
import uuid
import zlib
from pathlib import Path
from typing import Any

ABOUT, LOCK = "about.json", ".lock"
LONGEST_WAIT = 600.0  # [s] for the copy of another process, if reading is quick


class Unusable(Exception):
    """A copy is damaged; the message names the damage."""


def write_about(place: Path, about: dict[str, Any]) -> None:
    """Replace the description atomically."""
    text = json.dumps(about)
    partial = place / f"{ABOUT}.{uuid.uuid4().hex}"
    try:
        document = {"crc32": zlib.crc32(text.encode()), "about": about}
        partial.write_text(json.dumps(document, indent=1), encoding="utf-8")
        partial.replace(place / ABOUT)
    finally:
        partial.unlink(missing_ok=True)


def read_about(place: Path) -> dict[str, Any] | None:
    """The description, None if there is none; `Unusable` if it is damaged."""
    try:
        document = json.loads((place / ABOUT).read_text(encoding="utf-8"))
        about = document["about"]
        if document["crc32"] == zlib.crc32(json.dumps(about).encode()):
            return about
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable(f"{ABOUT} cannot be read ({error})") from error
    raise Unusable(f"{ABOUT} is damaged")
