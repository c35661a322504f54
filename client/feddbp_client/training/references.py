"""Functions by reference, `package.module:function`: a client's own, and those that a run names.

A reference in a run comes from the server, and importing a module runs its code. A client therefore imports for a run
only from packages that its operator has allowed, by --allow-import.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from feddbp_common.config.types import split_reference
from feddbp_common.errors import ConfigurationError, one_line


def load_reference(reference: str, allowed: Sequence[str], *, what: str) -> Any:
    """Imports a function that a run names, if its module is in one of the allowed packages.

    `what` names the setting in errors.
    """
    module, _ = split_reference(reference, what=what)
    if not any(f"{module}.".startswith(f"{package}.") for package in allowed):
        raise ConfigurationError(
            f"{what} {reference}: this client may not import {module}; if you trust it, start the client with "
            f"--allow-import {','.join((*allowed, module))}"
        )
    return load_function(reference, what=what)


def load_function(reference: str, *, what: str, error_type: type[ConfigurationError] = ConfigurationError) -> Any:
    """Imports a function that this client's operator names."""
    module_name, name = split_reference(reference, what=what, error_type=error_type)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything
        raise error_type(f"{what} {reference}: cannot import {module_name!r}: {one_line(error)}") from error
    function = getattr(module, name, None)
    if function is None:
        raise error_type(f"{what} {reference}: {module_name} has no {name!r}")
    if not callable(function):
        raise error_type(f"{what} {reference}: {name} is not a function")
    return function
