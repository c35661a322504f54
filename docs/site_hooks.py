"""What the site needs beyond Sphinx's own extensions.

- Formulas become MathML while building: browsers show it without a script.
- Diagrams use the copy of mermaid that `make docs` has fetched, where it could.
- Links to documents and folders outside docs/ lead to their pages on the site, or nowhere.
- Settings are documented by the descriptions of their fields; `feddbp` loads its names before they are documented.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from pydantic import BaseModel
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring
from sphinx.util.logging import getLogger
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator
from sphinxcontrib.mermaid import mermaid

log = getLogger(__name__)
ROOT: Final = Path(__file__).parents[1]
_MERMAID: Final = ROOT / "docs" / "_build" / "mermaid" / "mermaid.min.js"
_MERMAID_MODULE: Final = "/mermaid"


def setup(app: Sphinx) -> ExtensionMetadata:
    app.add_html_math_renderer("mathml", (_inline_formula, None), (_formula_block, None))
    app.connect("config-inited", _use_local_mermaid)
    app.connect("html-page-context", _load_local_mermaid, priority=400)  # before the extension imports it
    app.connect("doctree-read", _keep_links_inside)
    app.connect("builder-inited", _load_lazy_names)
    app.connect("autodoc-process-signature", _hide_signature_of_settings)
    app.connect("autodoc-process-docstring", _read_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline_formula(writer: HTML5Translator, node: nodes.math) -> None:
    _write_formula(writer, node, as_block=False)


def _formula_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    _write_formula(writer, node, as_block=True)


def _write_formula(writer: HTML5Translator, node: nodes.Element, *, as_block: bool) -> None:
    try:
        writer.body.append(tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        log.warning("formula %r cannot be shown: %s", node.astext(), error, location=node)
    raise nodes.SkipNode


def _use_local_mermaid(_app: Sphinx, config: Config) -> None:
    if _MERMAID.exists():
        config.html_static_path.append(str(_MERMAID.parent))
        config.mermaid_use_local = _MERMAID_MODULE


def _load_local_mermaid(
    app: Sphinx, _page: str, _template: str, _context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Browsers import no module from a file:// address: a plain script is loaded, and stands in for the module."""
    if doctree is None or not doctree.next_node(mermaid) or not app.config.mermaid_use_local:
        return
    stand_in = {"imports": {_MERMAID_MODULE: "data:text/javascript,export default globalThis.mermaid"}}
    app.add_js_file(_MERMAID.name, priority=300)
    app.add_js_file(None, priority=300, body=json.dumps(stand_in), type="importmap")


def _keep_links_inside(app: Sphinx, doctree: nodes.document) -> None:
    """A document of the repository's root has a page here; anything else outside docs/ is named without a link."""
    is_of_root = app.env.docname.startswith("project/")
    folder = ROOT if is_of_root else (ROOT / "docs" / app.env.docname).parent
    for link in list(doctree.findall(addnodes.pending_xref)):
        path, _, anchor = link["reftarget"].partition("#")
        target = (folder / path).resolve()
        if link["reftype"] != "myst" or not path or target.is_relative_to(ROOT / "docs"):
            continue
        if target.parent == ROOT and target.with_suffix(".md").exists():
            link["refdomain"] = "doc"
            link["reftarget"] = f"project/{target.stem.lower()}"
            link["reftargetid"] = anchor or link.get("reftargetid")
        elif target.exists():
            link.replace_self(link.children)


def _load_lazy_names(_app: Sphinx) -> None:
    package = import_module("feddbp")
    for name in getattr(package, "__all__", ()):
        setattr(package, name, getattr(package, name))


def _is_settings(documented: object) -> bool:
    return isinstance(documented, type) and issubclass(documented, BaseModel)


def _hide_signature_of_settings(
    _app: Sphinx, _kind: str, _name: str, documented: object, _options: object, _signature: str, _returns: str
) -> tuple[str, None] | None:
    return ("", None) if _is_settings(documented) else None


def _read_docstring(_app: Sphinx, kind: str, name: str, documented: Any, _options: object, lines: list[str]) -> None:
    """Understands sections such as `Raises:`, but not in attributes, where any colon would follow a type."""
    lines[:] = _with_marked_code(lines)
    if kind not in ("attribute", "data", "property"):
        lines[:] = GoogleDocstring(lines, name=name, obj=documented).lines()
    if _is_settings(documented):
        lines += ["", *_field_list(documented)]


def _with_marked_code(lines: Sequence[str]) -> Iterator[str]:
    """Marks indented blocks after a paragraph as code, as in Markdown; Sphinx takes them for quotations."""
    paragraph_is_indented = False
    for before, line in zip(("", *lines), lines, strict=False):
        if not before and line.startswith("    ") and not paragraph_is_indented:
            yield from ("::", "")
        if line:
            paragraph_is_indented = line.startswith(" ")
        yield line


def _field_list(settings: type[BaseModel], table: str = "") -> Iterator[str]:
    """As `:param:` lines, those of nested settings under their dotted names."""
    for name, field in settings.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            yield from _field_list(nested, f"{table}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        default = default.value if isinstance(default, Enum) else default
        note = " (required)" if field.is_required() else "" if default is None else f" (default: ``{default!r}``)"
        yield f":param {table}{name}: {field.description or ''}{note}"
