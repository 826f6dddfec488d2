"""Sphinx's settings for the documentation site; built by ``python3 dev.py docs``."""

import dpjax

project = "dpjax"
author = copyright = "The dpjax authors"
version = release = dpjax.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"dpjax {release}"

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # an included file starts below the page's own title

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say shapes and units, which "ArrayLike" does not
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields are described once, with their class
napoleon_use_rtype = False
napoleon_custom_sections = ["Guarantee"]
add_module_names = False
