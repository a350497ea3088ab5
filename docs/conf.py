"""The site of the documentation: `make docs` builds it with Sphinx.

The pages are written for a code host, and read well there. So nothing of Sphinx stands in them: the
sidebar is made from the lists of links in `docs/README.md`.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of

from sphinx.application import Sphinx

project = "celery_fairness"
author = "celery_fairness contributors"
# The year is no fact about the pages, and a build would change with it.
project_copyright = author
release = version = version_of("celery-fairness")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "README"
# A link to a heading that is not there is a warning, and `make docs` fails for a warning.
myst_heading_anchors = 4

napoleon_use_ivar = True
autodoc_class_signature = "separated"
# The text of a default, and never its value: one is the environment of this process.
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"celery_fairness {release}"
# The address that a host looks for first.
html_additional_pages = {"index": "redirect.html"}
templates_path = ["_templates"]
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
# JSON with an ellipsis, and answers of a server, are shown and not parsed.
suppress_warnings = ["misc.highlighting_failure"]

#: The pages whose text is a file of the root; on a code host they only link to it.
OF_ROOT = ("changelog", "upgrading")
ROOT_PAGE = re.compile(rf"\]\(({'|'.join(OF_ROOT)})\.md", re.IGNORECASE)
LINK_TO_ROOT = re.compile(r"\]\(((?:\.\./)*)\.\./([A-Z]+)(?=\.md)")
#: A link to Markdown that lies beside code, of which the site has no page.
BESIDE_CODE = re.compile(r"\]\(((?:\.\./)+(?:celery_fairness|examples)/[^)#]+\.md)[^)]*\)")
SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.MULTILINE)
PAGE = re.compile(r"\]\(((?:[\w-]+/)*[\w-]+)\.(?:md|rst)\)")


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Make links to files outside of this folder work, and lists of pages a sidebar."""
    text = source[0]
    if name in OF_ROOT:
        text = (app.srcdir.parent / f"{name.upper()}.md").read_text("utf-8")
        text = text.replace("](docs/", "](")
        text = ROOT_PAGE.sub(lambda match: f"]({match[1].lower()}.md", text)
    text = LINK_TO_ROOT.sub(lambda match: f"]({match[1]}{match[2].lower()}", text)
    text = BESIDE_CODE.sub(r"](path:\1)", text)
    if name == root_doc:
        text += "".join(
            table_of_contents(of, f":caption: {title}\n") for title, of in SECTION.findall(text)
        )
    elif name.endswith("/README"):
        text += table_of_contents(text)
    source[0] = text


def table_of_contents(text: str, options: str = "") -> str:
    """Return one of the pages to which a text links; the sidebar shows it."""
    pages = "\n".join(dict.fromkeys(PAGE.findall(text)))
    return f"\n```{{toctree}}\n:hidden:\n{options}\n{pages}\n```\n"


def setup(app: Sphinx) -> None:
    """Connect what Sphinx calls while it reads."""
    app.connect("source-read", read_page)
