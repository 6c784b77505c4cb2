"""Fixtures of the tests of parsed copies."""

import pytest
from xmc_texts import TEST, TRAIN

from hetjax.data.readers import text_files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").write_bytes(TRAIN)
    (tmp_path / "data" / "test.txt").write_bytes(TEST)
    return tmp_path / "data"


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def parsed(monkeypatch):
    """The list of parsed files."""
    found, read = [], text_files.chunks

    def chunks(path):
        found.append(path.name)
        return read(path)

    monkeypatch.setattr("hetjax.data.readers.sparse_text.chunks", chunks)
    return found
