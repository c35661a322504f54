"""References to functions of a user's own, `package.module:function`: their form. Nothing is imported here."""

from __future__ import annotations

from feddbp_common.errors import ConfigurationError

MARK = ":"
"""Tells a reference from the name of something built in."""


def split_reference(
    reference: str, *, what: str, error_type: type[ConfigurationError] = ConfigurationError
) -> tuple[str, str]:
    """Returns the names of the module and of the function; errors begin with `what`, the option or setting."""
    module, _, function = reference.partition(MARK)
    if not (is_module_name(module) and function.isidentifier()):
        raise error_type(f"{what} {reference}: is not of the form package.module:function")
    return module, function


def is_module_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))
