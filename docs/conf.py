"""Configuration of the documentation site: Sphinx, MyST and Furo.

Build it with: uv run --group docs sphinx-build -W docs docs/_build
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # autodoc imports launcher and trainer

project = "Slipway"
html_title = "Slipway"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "docs.extensions.llms_txt",
]
exclude_patterns = ["_build", "extensions", "generate"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["slipway.css"]
html_copy_source = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4  # [text](page.md#heading) is checked

nitpicky = True
nitpick_ignore_regex = [
    # Types in signatures that have no page here: the libraries' own, and internal ones.
    ("py:.*", r"(?!launcher\.\w+$|trainer\.\w+$).*"),
]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_display_short_literal_types = True

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_remove_prompts = True
