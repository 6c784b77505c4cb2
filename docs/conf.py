"""The configuration of Sphinx: `sphinx-build -W --keep-going docs build/docs`.

Nothing is fetched, neither while the pages are built nor while they are read: formulas
are MathML, which browsers show by themselves, and notebooks are shown with the output
that is stored in them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import hetjax

project = "hetjax"
author = "the authors of hetjax"
release = hetjax.__version__
html_title = f"hetjax {release}"

extensions = [
    "sphinx.ext.autodoc",
    "myst_nb",  # Markdown and notebooks
    "sphinx_copybutton",
    # of this folder:
    "mathml",
    "plain_docstrings",
    "repository_pages",
]
exclude_patterns = ["_ext"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["hetjax.css"]
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"

add_module_names = False
python_maximum_signature_line_length = 110  # with the modules of types, unseen
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"

myst_enable_extensions = ["colon_fence", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the tests execute them
nb_ipywidgets_js = {}  # by default from the network
suppress_warnings = ["myst-nb.mime_priority"]

html_math_renderer = "mathml"

# [the page here]: the file of the repository that it shows
repository_pages = {
    "results": "experiments/README.md",
    "leaderboard": "experiments/leaderboard.md",
    "benchmarks": "experiments/benchmarks/README.md",
    "faults": "experiments/benchmarks/faults.md",
}
# a section of another file that a page has before its own first one
repository_sections = {"leaderboard": "README.md#What wins where"}
