"""HTML templates of a package: everything is escaped, and a misspelt variable is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def html_templates(package: str) -> Environment:
    """The environment of the templates in a package's `templates/`."""
    # imported here: most commands work in an installation without jinja2
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # autoescape=True: Jinja2's own choice by file name does not cover names that end in .j2
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
