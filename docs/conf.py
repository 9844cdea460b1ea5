"""Sphinx with MyST: pages in Markdown, the reference from docstrings, pictures from the code beside them."""

from __future__ import annotations

import html
import pathlib
import re
import sys
import tomllib
from typing import Any

from docutils import nodes

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE / "_extensions"), str(HERE.parent)]

import statetransform  # noqa: E402

# The one place for addresses of this project is [project.urls] in pyproject.toml.
URLS = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"].get("urls", {})

project = "statetransform"
copyright = "the statetransform authors"
version = release = statetransform.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "charts",
    "inventories",
    "llms",
    "notebooks",
    "results",
    "shown",
    "sources",
]
exclude_patterns = [
    "_build",
    "_extensions",
    "_templates",
    "inventories",
    "measured.md",
    "measured-gpu.md",
    "examples/_notebooks",
    "notebooks",
    "pictures",
]
default_role = "code"  # docstrings write `code` in single backticks, as Markdown does
nitpicky = True  # a name in a docstring that leads nowhere is a warning
nitpick_ignore_regex = [("py:class", r"(?!statetransform|jax|numpy).*")]  # field lists take descriptions for types

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True  # attributes are described once, with the class
maximum_signature_line_length = 78
add_module_names = False
python_use_unqualified_type_names = True

# Code is copied as it is typed: of an example with prompts only what follows them.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos"

html_baseurl = URLS.get("Documentation", "")
html_theme = "furo"
html_title = f"statetransform {version}"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["extra.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {
    "source_repository": URLS.get("Source", ""),
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {
        "color-brand-primary": "#0b57a4",
        "color-brand-content": "#0b57a4",
        "color-code-background": "#f6f8fa",
        "font-stack--monospace": "ui-monospace, 'SFMono-Regular', Menlo, Consolas, 'DejaVu Sans Mono', monospace",
    },
    "dark_css_variables": {"color-brand-primary": "#79b8ff", "color-brand-content": "#79b8ff"},
}
if not URLS.get("Source"):
    del html_theme_options["source_repository"]


def strip_code(app: Any, doctree: Any) -> None:
    """Doctests end with an empty line; on the page it is left out."""
    for block in doctree.findall(nodes.literal_block):
        block.rawsource = block.astext().rstrip()
        block.children = [nodes.Text(block.rawsource)]


def readable(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, *rest: Any) -> Any:
    """A default reads as its user would write it, and a private marker as `...`."""
    if signature is None:
        return None
    known = re.sub(r"=frozenset\(\{<class '[\w.]+\.FailedCheckError'>\}\)", "=checkify.user_checks", signature)
    known = re.sub(r", _\w+=[^,)]+", "", known)  # what JAX keeps for itself
    return re.sub(r"=<object object[^>]*>", "=...", known), *rest


def described(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Search engines and link previews show the first paragraph of a page."""
    if doctree is None or 'name="description"' in context.get("metatags", ""):
        return
    for paragraph in doctree.findall(nodes.paragraph):
        text = html.escape(" ".join(paragraph.astext().split())[:300])
        context["metatags"] = context.get("metatags", "") + f'<meta name="description" content="{text}" />'
        return


def setup(app: Any) -> None:
    app.connect("html-page-context", described)
    app.connect("autodoc-process-signature", readable)
    app.connect("doctree-read", strip_code)
