"""The code in the pages of docs/ runs as it is written there.

The Python blocks of a page share one namespace, as if they were one script. A block
below "% not run: why" is only compiled, and its names are looked up.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

import hetjax as hj

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^(% not run: [^\n]+\n)?```python\n(.*?)^```$", re.DOTALL | re.M)
PAGES = [ROOT / "docs/start.md", *sorted((ROOT / "docs/howto").glob("*.md"))]
READ = [*PAGES, ROOT / "README.md", ROOT / "docs/concepts.md"]


def blocks(page: Path) -> list[tuple[int, str, bool]]:
    """(line, code, is it run?) of every Python block."""
    text = page.read_text()
    return [
        (text[: found.start(2)].count("\n"), found[2], not found[1])
        for found in BLOCK.finditer(text)
    ]


@pytest.mark.full  # up to half a minute
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem
)
def test_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page)


def run(page, changed=str):
    """Run the page's code as one script, after `changed(code)`."""
    names = {"__name__": "__main__"}
    for line, code, is_run in blocks(page):
        if is_run:  # with the page's own line numbers in tracebacks
            exec(compile("\n" * line + changed(code), page.name, "exec"), names)


def test_the_start_page_runs_for_a_tenth_of_its_seconds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, of_runs = ROOT / "docs/start.md", []

    def shorter(code):
        short, number = re.subn(r"\bseconds=(\d)\b", r"seconds=0.\1", code)
        of_runs.append(number)
        return short

    run(page, shorter)
    assert sum(of_runs) == 2
    for name in ("accuracy.png", "timeline.png"):
        assert Path(name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("page", READ, ids=lambda page: page.stem)
def test_names_and_arguments_exist(page):
    for line, code, _ in blocks(page):
        for node in ast.walk(ast.parse(code)):
            where = f"{page.name}: {_path(node)} in the block at line {line}"
            if isinstance(node, ast.Attribute) and _path(node):
                assert _found(_path(node)) is not None, where
            if isinstance(node, ast.Call) and (path := _path(node.func)):
                where = f"{page.name}: {ast.unparse(node)[:200]}"
                assert _found(path) is not None, where
                given = {argument.arg for argument in node.keywords} - {None}
                known = _arguments(_found(path))
                assert given <= known or "**" in known, where


def _path(node: ast.AST) -> str:
    """ "hj.data.digits" of such an expression, else ""."""
    if isinstance(node, ast.Attribute):
        before = _path(node.value)
        return f"{before}.{node.attr}" if before else ""
    return "hj" if isinstance(node, ast.Name) and node.id == "hj" else ""


def _found(path: str):
    found = hj
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def _arguments(function) -> set[str]:
    # of a class those of __init__: flax.nnx hides them behind a call of its own
    of = function.__init__ if inspect.isclass(function) else function
    if not inspect.isfunction(of):  # a named tuple
        of = function
    parameters = inspect.signature(of).parameters.values()
    return {"**" if p.kind == p.VAR_KEYWORD else p.name for p in parameters}


def test_the_pages_have_code():
    assert sum(len(blocks(page)) for page in PAGES) > 40
    assert all(
        blocks(page) for page in PAGES if page.stem not in ("index", "command_line")
    )


def test_arguments_on_the_algorithms_pages_exist():
    """Each `name=` in a line of text is an argument of some factory or part."""
    places = (hj, hj.merge, hj.schedule, hj.local, hj.sampling, hj.output, hj.models)
    known = set()
    for place in places:
        for name in place.__all__:
            if inspect.isfunction(getattr(place, name)):
                known |= _arguments(getattr(place, name))
    pages = sorted((ROOT / "docs/algorithms").glob("*.md"))
    checked = 0
    for page in pages:
        for span in re.findall(r"(?<!`)`([^`\n]+)`", page.read_text()):
            for argument in re.findall(r"(\w+)=", span):
                assert argument in known, f"{page.name}: {span}"
                checked += 1
    assert checked > 30


def test_everything_public_is_in_the_api_pages():
    types = {"MergeState", "ModelState", "OptState", "Params", "PyTree"}
    pages = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    documented = set(re.findall(r":: hetjax\.(\w+)\s", pages))
    assert set(hj.__all__) - types <= documented
