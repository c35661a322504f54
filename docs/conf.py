"""Configuration of the documentation site; `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from feddbp_common.version import VERSION

project = "FedDBP"
author = "the FedDBP authors"
version = release = VERSION

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinxcontrib.mermaid",
    "site_hooks",
]

exclude_patterns = ["_build", "results/*/report"]

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["mermaid"]
# anchors as forges make them, so that a link works in both places
myst_heading_anchors = 4
myst_heading_slug_func = "github"

# docstrings use single backticks for code
default_role = "code"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config"}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

highlight_language = "none"
html_theme = "furo"
html_title = f"FedDBP {VERSION}"
html_math_renderer = "mathml"
html_copy_source = False
html_use_index = False
html_domain_indices = False

mermaid_version = "11.17.2"
mermaid_fullscreen = False
mermaid_height = "auto"
