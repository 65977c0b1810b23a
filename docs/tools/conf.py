"""Settings of Sphinx. `docs/tools/build_site.py` builds the site with them."""

from __future__ import annotations

import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

import clipmill

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # where Sphinx is started alone

from docs.tools import reference

for name in clipmill.__all__:  # autodoc looks only for what a module has already
    getattr(clipmill, name)

project = "clipmill"
author = "the authors of clipmill"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]  # myst_nb has myst_parser
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
root_doc = "index"
exclude_patterns = ["tools/**"]
nb_execution_mode = "force"  # a notebook is stored without outputs, and what a page shows is true
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = -1  # a busy machine
myst_heading_anchors = 4  # the anchor in [text](page.md#heading) must exist
highlight_language = "text"  # the language of a block is written, not guessed
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of signatures: the site has no page for most
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": False}
smartquotes = False  # options and YAML are shown as they are typed
html_theme = "furo"
html_title = "clipmill"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static_files"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
html_theme_options = {"footer_icons": []}


class LiveReports(Directive):
    """The reports that the site has, each with a link and in a frame."""

    def run(self) -> list[nodes.Node]:
        config = self.state.document.settings.env.config
        names = [name for name in config.live_reports if name]
        if not names:
            text = "This copy of the site was built without a report."
            return [nodes.paragraph("", text)]
        items: list[nodes.Node] = []
        for name in names:
            link = nodes.reference("", f"Report of {name}", refuri=f"live/{name}.html")
            items.append(nodes.paragraph("", "", link))
            frame = f'<iframe class="live" title="{name}" loading="lazy" src="live/{name}.html">'
            items.append(nodes.raw("", f"{frame}</iframe>", format="html"))
        return items


def fill_reference(app: Sphinx, name: str, source: list[str]) -> None:
    """The tables of the reference, from the code as it is now."""
    source[0] = reference.fill(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill_reference)
    app.add_config_value("live_reports", [], "env", [list])
    app.add_directive("live-reports", LiveReports)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
