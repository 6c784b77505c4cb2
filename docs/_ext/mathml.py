"""Formulas as MathML, which browsers show without scripts, fonts or a network."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)
_UNKNOWN = re.compile(r"&amp;|&#x00026;|>\\\w")


def _inline(writer, node: nodes.Element) -> None:
    writer.body.append(_markup(node, "inline"))
    raise nodes.SkipNode


def _block(writer, node: nodes.Element) -> None:
    writer.body.append(f'<div class="formula">{_markup(node, "block")}</div>\n')
    raise nodes.SkipNode


def _markup(node: nodes.Element, display: str) -> str:
    text = node.astext().replace("{aligned}", "{align*}")  # the name that it knows
    try:
        result = convert(text, display=display)
    except Exception as error:  # it has many kinds of them
        result, why = "", repr(error)
    else:
        # what it does not know it leaves as it is
        why = "an unknown command" if _UNKNOWN.search(result) else ""
    if why:
        _LOGGER.warning("no MathML of %r: %s", text, why, location=node)
    return result


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer "mathml" for `html_math_renderer`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
