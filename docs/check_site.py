"""Checks a built site: links within it lead somewhere, and nothing is fetched.

    python docs/check_site.py build/docs

It prints every link that leads nowhere and everything that a browser would fetch from
elsewhere, and exits with 1 if there is any.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class Page(HTMLParser):
    """The links, ids and fetched files of an HTML page."""

    def __init__(self, path: Path):
        """Read the page."""
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what matters of a tag."""
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if found.get(FETCHED.get(tag, "")):
            self.fetched.append(found[FETCHED[tag]])


def problems(site: Path) -> list[str]:
    """One line for each link that leads nowhere, and for each fetch from elsewhere."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        shown = path.relative_to(site.resolve())
        for address in page.fetched:
            if urlsplit(address).netloc:
                found.append(f"{shown} fetches {address}")
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path
            if parts.path:
                target = (path.parent / unquote(parts.path)).resolve()
            if not target.exists():
                found.append(f"{shown} links to {link}: no such file")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].ids
            ):
                found.append(f"{shown} links to {link}: no such place")
    if not pages:
        found.append(f"there is no page in {site}")
    return found


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or "all links of the site lead somewhere")
    sys.exit(bool(lines))
