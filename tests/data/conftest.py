"""Fixtures of the data tests."""

import pytest

from hetjax.data import read_xmc
from hetjax.data.readers import text_files


@pytest.fixture
def small_chunks(monkeypatch):
    """One line per chunk, so that every border between chunks is tested."""
    monkeypatch.setattr(text_files, "CHUNK", 1)


@pytest.fixture
def read(tmp_path):
    """Read a text as the training file beside a valid test file."""

    def read_text(text, **options):
        train, test = tmp_path / "train.txt", tmp_path / "test.txt"
        train.write_bytes(text if isinstance(text, bytes) else text.encode())
        test.write_text("0 0:1\n")
        return read_xmc(train, test, **options)

    return read_text
