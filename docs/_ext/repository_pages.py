"""Pages that are files of the repository elsewhere, and its notebooks.

A README is also read where it lies, so it is not copied: the page here takes its text,
and its links are turned to where they lead from here. Notebooks are copied when a build
begins, to `docs/notebooks`, which git ignores, and their links are turned, too.
"""

import json
import re
from os.path import relpath
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def _copy_notebooks(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "notebooks"
    there = {path.name: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    for path in folder.glob("*.ipynb"):
        if path.name not in there:
            path.unlink()
    for name, path in there.items():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                source = "".join(cell["source"])
                cell["source"] = _turned(app, source, path, folder)
        text = json.dumps(notebook)
        copy = folder / name
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.write_text(text, encoding="utf-8")


def _take_text(app: Sphinx, page: str, source: list[str]) -> None:
    file = app.config.repository_pages.get(page)
    if file is None:
        return
    folder = Path(app.srcdir) / Path(page).parent
    source[0] = _text_of(app, file, folder)
    if page in app.config.repository_sections:
        file, _, title = app.config.repository_sections[page].partition("#")
        section = _text_of(app, file, folder, title)
        source[0] = source[0].replace("\n## ", f"{section}\n## ", 1)


def _text_of(app: Sphinx, file: str, folder: Path, title: str = "") -> str:
    """The text of a file, or of its section of that title."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if title:
        begin = text.index(f"\n## {title}\n")
        text = text[begin : text.index("\n## ", begin + 1)]
    app.env.note_dependency(str(ROOT / file))
    return _turned(app, text, ROOT / file, folder)


def _turned(app: Sphinx, text: str, file: Path, folder: Path) -> str:
    """The text of a file of the repository, with links as from a page in `folder`."""
    pages = {ROOT / file: page for page, file in app.config.repository_pages.items()}

    def turned(link: re.Match) -> str:
        target = file.parent.joinpath(link[1]).resolve()
        if target in pages:
            found = Path(app.srcdir) / f"{pages[target]}.md"
        elif target.parent == ROOT / "notebooks":
            found = Path(app.srcdir) / "notebooks" / target.name
        elif target.suffix == ".md" and not target.is_relative_to(app.srcdir):
            raise ValueError(f"{file} links to {link[1]}, which is no page here")
        else:
            found = target
        return f"]({relpath(found, folder)}{link[2] or ''})"

    return _LINK.sub(turned, text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add settings: {page: file}, from the repository's root, and {page: file#section}.

    `repository_sections` go before the first section of a page of `repository_pages`.
    """
    app.add_config_value("repository_pages", {}, "env")
    app.add_config_value("repository_sections", {}, "env")
    app.connect("config-inited", lambda app, config: _copy_notebooks(app))
    app.connect("source-read", _take_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
