"""Sphinx with MyST: pages in Markdown, the reference from docstrings."""

project = "statetransform"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
autodoc_typehints = "none"
napoleon_use_ivar = True  # attributes are described once, with the class
