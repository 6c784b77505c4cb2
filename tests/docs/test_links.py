"""Links between the repository's texts lead somewhere; commands in them exist."""

import ast
import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "experiments").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    """A text; of a notebook its Markdown cells."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] != "code")


def prose(path: Path) -> str:
    """A text without its code: blocks, and `code` in a line."""
    text = FENCE.sub("", read(path))
    return re.sub(r"`[^`\n]*`", "`code`", text)


def anchors(path: Path) -> set[str]:
    """The anchors of a text's headings, as GitHub and MyST make them."""
    text = FENCE.sub("", read(path))
    found, seen = set(), Counter()
    for title in HEADING.findall(text):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)|\$", r"\1", title).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@pytest.mark.parametrize("text", [*TEXTS, *NOTEBOOKS], ids=name)
def test_links_lead_somewhere(text):
    for target in LINK.findall(prose(text)):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (text.parent / file).resolve() if file else text
        if path.parent == ROOT / "docs/notebooks" and path.suffix == ".ipynb":
            path = ROOT / "notebooks" / path.name  # a build copies them
        assert path.exists(), f"{name(text)} links to {target}"
        if anchor:
            # a page that shows a text of the repository has its anchors
            assert anchor in anchors(_shown(path)), f"{name(text)} links to {target}"


def _shown(path: Path) -> Path:
    """The file whose text a page shows: another one, if its first line says so."""
    other = re.match(r"% The text is that of ([^:]+):", path.read_text())
    return ROOT / other[1] if other else path


def commands() -> list[tuple[Path, str]]:
    """(text, command) of every `python ...` in blocks that are no Python."""
    found = []
    for text in TEXTS:
        for _, language, body in FENCE.findall(text.read_text()):
            if language in ("", "sh", "bash", "console"):
                body = body.replace("\\\n", " ")
                found += [
                    (text, line) for line in body.splitlines() if "python " in line
                ]
    return found


def flags(script: Path) -> set[str]:
    """Names of the absl flags of a script, and of what it imports of experiments."""
    found, todo, done = set(), [script], set()
    while todo:
        path = todo.pop()
        if path in done:
            continue
        done.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and "DEFINE" in ast.unparse(node.func):
                found |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module] + [
                    f"{node.module}.{a.name}" for a in node.names
                ]
            for module in modules:
                file = ROOT / (module.replace(".", "/") + ".py")
                if module.startswith("experiments") and file.exists():
                    todo.append(file)
    return found


def test_commands_have_scripts_and_flags():
    checked = 0
    for text, command in commands():
        where = f"{name(text)}: {command}"
        for script, given in _calls(command):
            path = next(
                (
                    p
                    for p in (ROOT / script, ROOT / "experiments" / script)
                    if p.exists()
                ),
                None,
            )
            assert path, where
            known = flags(path) | {"help", "flagfile"}
            for flag in given:
                assert flag in known or flag.removeprefix("no") in known, where
                checked += 1
            for file in re.findall(r"--flagfile=(\S+)", command):
                assert (ROOT / file).exists(), where
    assert checked > 50


def _calls(command: str) -> list[tuple[str, list[str]]]:
    """(script, names of its flags) of a command; `launch.py ... -- other.py ...`."""
    command = command.partition("#")[0]
    calls = []
    for part in re.split(r"\s--\s|&&", command):
        script = re.search(r"[\w/.]+\.py\b", part)
        if script:
            after = part[script.end() :]
            calls.append((script[0], re.findall(r"(?<=\s)--(\w+)", after)))
    return calls


def test_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(project["optional-dependencies"])
    for text in TEXTS:
        for extra in re.findall(r"(?:hetjax|['\"]\.)\[(\w+)\]", text.read_text()):
            assert extra in known, f"{name(text)}: [{extra}]"


def test_the_results_in_ten_lines_count_their_claims():
    text = (ROOT / "experiments/README.md").read_text()
    tables = text[text.index("## Claims of the papers") : text.index("The commands (")]
    rows = re.findall(r"^\| (?!claim|---).*\| ([^|]+) \|$", tables, re.MULTILINE)
    kinds = Counter(verdict.split()[0].strip(":") for verdict in rows)
    assert set(kinds) == {"reproduced", "partly", "not"}
    said = re.search(
        r"Of the (\d+) headline claims below\s+(\d+) are reproduced, "
        r"(\d+) partly, and (\d+) are not",
        text,
    )
    assert said
    assert [int(n) for n in said.groups()] == [
        len(rows),
        kinds["reproduced"],
        kinds["partly"],
        kinds["not"],
    ]
