"""The folder of what hetjax can make again: parsed texts, measurements."""

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """$HETJAX_CACHE, or the user's cache folder."""
    chosen = os.environ.get("HETJAX_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("hetjax")
