"""Docstrings of hetjax, which are plain English, as reStructuredText.

Formulas and tables are indented blocks, which become literal blocks; `names` in single
backticks become code, and links where the name is documented; all else is text, in
which `*` or `w_i` mean nothing special. "docs/algorithms A.1" becomes a link.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils.nodes import make_id
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import stringify_annotation

_LOGGER = logging.getLogger(__name__)
KINDS = (
    *("Count", "Whole", "Seed", "HostSeed"),
    *("Positive", "NotNegative", "Fraction", "Share", "PositiveShare"),
)
# (module, name) of types that signatures show by name: docs/api/index.md says what
# they are
TYPES = (
    ("hetjax.merge.formulas.weights", "Numbers"),
    ("hetjax.merge.formulas.weights", "ArrayLike"),
    ("hetjax.schedule.learning_rates", "LearningRateLike"),
    ("hetjax.optimizers", "Optimizer"),
    *(("hetjax.arguments", kind) for kind in KINDS),
    ("hetjax.callbacks", "OnEval"),
    ("hetjax.tasks.augment.mixing", "Mix"),
    ("hetjax.tasks.augment.transforms", "Transform"),
    ("hetjax.schedule.batch_scaling", "ScalingRule"),
)
_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SIGNATURE = re.compile(r"\w+\(.*\) -> ")
_COLUMNS = re.compile(r"\S {3,}\S")
_HEADING = re.compile(r"^##+ (([A-Z](?:\.\d+)?)\.? .*)$", re.MULTILINE)
_SECTION = re.compile(r"\b[A-Z](?:\.\d+)?\b")
_CITATION = re.compile(
    r"docs/algorithms\s+[A-Z](?:\.\d+)?\b(?:(?:,|\s+and|\s+to)\s+[A-Z](?:\.\d+)?\b)*"
)


def sections(folder: Path) -> dict[str, str]:
    """{"A.1": the address of its heading, as seen from the folder of the API}."""
    return {
        number: f"../algorithms/{page.stem}.html#{make_id(title)}"
        for page in sorted(folder.glob("*.md"))
        for title, number in _HEADING.findall(page.read_text(encoding="utf-8"))
    }


def to_rst(text: str, code: Callable[[str], str], links: dict[str, str]) -> list[str]:
    """The lines of a docstring; `code(span)` is the markup of what backticks hold."""
    lines: list[str] = []
    for block in re.split(r"\n[ \t]*\n", text.strip("\n")):
        if block.startswith(" "):
            lines += [".. code-block:: text", "", *block.split("\n")]
        elif block.startswith(">>>"):
            lines += [".. code-block:: pycon", "", *_indented(block)]
        elif _is_table(block):
            lines += [".. code-block:: text", "", *_indented(block)]
        else:
            if not block.startswith("- "):  # a list right below a sentence
                block = block.replace("\n- ", "\n\n- ", 1)
            lines += _inline(block, code, links).split("\n")
        lines.append("")
    return lines


def _is_table(block: str) -> bool:
    """Lines that must stay lines: signatures, or columns."""
    first, *more = block.split("\n")
    return bool(_SIGNATURE.match(first)) or bool(
        more and _COLUMNS.search(first) and _COLUMNS.search(f"x{more[0]}")
    )


def _indented(block: str) -> list[str]:
    return textwrap.indent(block, "    ").split("\n")


def _inline(text: str, code: Callable[[str], str], links: dict[str, str]) -> str:
    parts = _CODE.split(text)  # text, code, text, ...
    for k, part in enumerate(parts):
        if k % 2:
            parts[k] = code(re.sub(r"\s+", " ", part))
        else:
            part = re.sub(r"([*_|\\])", r"\\\1", part)
            parts[k] = _CITATION.sub(lambda found: _linked(found[0], links), part)
    # an escape ends markup that a letter follows
    return re.sub(r"(?<=[`])(?=\x00\w)", r"\\ ", "\x00".join(parts)).replace("\x00", "")


def _linked(citation: str, links: dict[str, str]) -> str:
    return _SECTION.sub(lambda found: f"`{found[0]} <{links[found[0]]}>`__", citation)


def _reference(span: str, name: str, module: str, parameters: set[str]) -> str:
    """The markup of a code span in an object's docstring.

    It is a link if it names something that is seen from the object's place in the API,
    or in its module, and that is no parameter of its own.
    """
    if not _NAME.fullmatch(span) or span.split(".")[0] in parameters:
        return f"``{span}``"
    if span.startswith("hetjax."):
        return f":py:obj:`{span}`"
    places = [f"{place}." for place in (name, module)]
    while any(places):  # from the inside to the outside
        for place in places:
            if place and _found(place + span) is not None:
                return f":py:obj:`{span} <{place}{span}>`"
        places = [re.sub(r"\w*\.$", "", place) for place in places]
    return f"``{span}``"


def _found(path: str) -> Any:
    """The object of this dotted name, or None."""
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):  # modules need not be imported already
        try:
            found: Any = import_module(".".join(parts[:depth]))
        except ImportError:
            continue
        for part in parts[depth:]:
            found = getattr(found, part, None)
        return found
    return None


def _parameters(of: Any) -> set[str]:
    try:
        return set(inspect.signature(of).parameters)
    except (TypeError, ValueError):
        return set()


def _process(app, what, name, of, options, lines) -> None:
    names = _parameters(of) if what != "module" else set()
    module = getattr(of, "__module__", None) or name

    def code(span: str) -> str:
        return _reference(span, name, module, names)

    lines[:] = to_rst("\n".join(lines), code, app.sections)
    if what == "class" and _is_record(of):
        lines += ["", ".. code-block:: python", "", *_indented(fields(of))]


def _is_record(of: Any) -> bool:
    """A named tuple or dataclass whose source is at hand, with fields."""
    is_tuple = issubclass(of, tuple) and hasattr(of, "_fields")
    return (is_tuple or is_dataclass(of)) and "__annotations__" in vars(of)


def fields(of: type) -> str:
    """The source of a class's fields, with the comments that describe them."""
    source = inspect.cleandoc(f"\n{inspect.getsource(of)}")
    body = next(n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ClassDef))
    found = [
        node
        for node in body.body
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node)
    ]
    lines = source.split("\n")[found[0].lineno - 1 : found[-1].end_lineno]
    return textwrap.dedent("\n".join(lines))


def _signature(app, what, name, of, options, signature, returns) -> Any:
    """A record's fields are shown below, as in its source; long types have names."""
    if what == "class" and _is_record(of):
        return "", None
    return _shortened(signature), _shortened(returns)


def _shortened(text: str | None) -> str | None:
    """A signature in which types that the library names are these names."""
    for whole, name in _names_of_types().items() if text else ():
        text = text.replace(whole, name)
    return text


@cache
def _names_of_types() -> dict[str, str]:
    """{the text of a type: its name}, those that contain others first."""
    found = {
        stringify_annotation(getattr(import_module(module), name), "smart"): name
        for module, name in TYPES
    }
    return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))


def _skip(app, what, name, of, skip, options) -> bool | None:
    # the fields of named tuples are shown as a whole
    return True if type(of).__name__ == "_tuplegetter" else None


def _missing(app, env, node, content) -> Any:
    """Find a name under which the same object is documented; warn in pages if none.

    Signatures have names such as hetjax.merge.types.Merge, which are private to their
    modules. In docstrings and signatures a name that is not found stays code.
    """
    if node.get("refdomain") != "py" or not node["reftarget"].startswith("hetjax"):
        return None
    domain = env.get_domain("py")
    wanted = _found(node["reftarget"])
    for name, entry in domain.objects.items():
        if wanted is not None and _found(name) is wanted:
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, content
            )
    if not node["refdoc"].startswith("api/"):
        _LOGGER.warning(
            "there is no %r in the API's pages", node["reftarget"], location=node
        )
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the conversion, and the check of names in pages."""
    app.sections = sections(Path(app.srcdir) / "algorithms")
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
