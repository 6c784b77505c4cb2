"""Docstrings cite sections of docs/algorithms, and those exist."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^##+ ([A-Z](?:\.\d+)?)\.? ", re.MULTILINE)
SECTION = r"[A-Z](?:\.\d+)?\b"
# "docs/algorithms A.1", "... E and I", "... C.1, C.2, G.1", "... A.1 to A.3"
CITATION = re.compile(rf"docs/algorithms ({SECTION}(?:(?:,| and| to) {SECTION})*)")


def headings() -> list[str]:
    pages = sorted((ROOT / "docs/algorithms").glob("*.md"))
    return [found for page in pages for found in HEADING.findall(page.read_text())]


def citations() -> list[tuple[str, str]]:
    """(section, file) of every citation; a docstring's line breaks are spaces."""
    files = [
        path
        for folder in ("hetjax", "experiments", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != Path(__file__)
    ]
    found = []
    for path in files:
        text = re.sub(r"\s+", " ", path.read_text())
        for sections in CITATION.findall(text):
            found += [(s, path.name) for s in re.findall(SECTION, sections)]
    return found


def test_cited_sections_exist():
    known = set(headings())
    missing = [cited for cited in citations() if cited[0] not in known]
    assert not missing
    assert len(citations()) > 80  # they are found at all


def test_each_section_is_at_one_place():
    counts = Counter(headings())
    assert [s for s, count in counts.items() if count > 1] == []
    assert {s[0] for s in counts} == set("ABCDEFGHIJKL")


def test_sections_are_numbered_without_gaps():
    """A.1, A.2, ...: a citation that was right stays right."""
    for letter in "ABCDEFGHIJKL":  # L is on several pages
        of_letter = [s for s in headings() if s[0] == letter]
        numbers = sorted(int(s[2:]) for s in of_letter if len(s) > 1)
        start = 0 if 0 in numbers else 1
        assert numbers == list(range(start, start + len(numbers))), letter


def test_the_old_form_is_gone():
    for folder in ("hetjax", "experiments", "tests", "notebooks"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path != Path(__file__) and path.suffix in (".py", ".ipynb", ".md"):
                assert "ALGORITHMS" not in path.read_text(), path
