"""Sphinx's settings for the documentation site; built by ``python3 dev.py docs``."""

import re

import dpjax

project = "dpjax"
author = copyright = "The dpjax authors"
version = release = dpjax.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"dpjax {release}"

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks/execute.py has done it
nb_merge_streams = True
suppress_warnings = ["myst.header"]  # an included file starts below the page's own title

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say shapes and units, which "ArrayLike" does not
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Guarantee", ("Fields", "params_style")]
add_module_names = False
default_role = "literal"


def _as_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are read in a terminal first: absolute values and tables are written as one writes them there."""
    text = "\n".join(lines) + "\n"
    rows = re.compile(r"(?m)(?:^[ \t]*\|.*\|[ \t]*\n){3,}")

    def table(found):
        cells = [[c.strip() for c in re.split(r"(?<!\\)\|", row.strip()[1:-1])] for row in found[0].strip().split("\n")]
        out = ["", ".. list-table::", "   :header-rows: 1", ""]
        for row in [cells[0], *cells[2:]]:
            out += [f"   {'*' if i == 0 else ' '} - {cell}" for i, cell in enumerate(row)]
        return "\n".join([*out, "", ""])

    text = re.sub(r"(?m)^Attributes:$", "Fields:", rows.sub(table, text))
    text = re.sub(r"(?<![`|\w:])\|(?=[\w(])", r"\\|", text)  # not the beginning of a substitution
    lines[:] = text.rstrip("\n").split("\n")


def _notebooks_of_the_site(app, docname, source):
    """Pages and notebooks link to each other in the checkout; the executed notebooks are beside the pages."""
    if docname.startswith("notebooks/"):
        source[0] = source[0].replace("](../docs/", "](../")
    source[0] = re.sub(r"\]\((?:\.\./)+notebooks/", "](" + "../" * docname.count("/") + "notebooks/", source[0])


def setup(app):
    """Registers what is above."""
    app.connect("source-read", _notebooks_of_the_site)
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)
