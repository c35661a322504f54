"""The base of configuration models that Python code builds by name: its errors are those of a command, in one line."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from feddbp_common.config.diagnostics import FieldError, suggestion
from feddbp_common.config.sources import options_of, similar_options
from feddbp_common.config.types import FrozenModel
from feddbp_common.errors import ConfigurationError


class PublicModel(FrozenModel):
    """A frozen model whose constructor raises ConfigurationError.

    `model_validate` raises pydantic's ValidationError, which tells commands where a value came from.
    """

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            message = _described(FieldError.first_in(error), type(self))
        except ConfigurationError as error:
            message = str(error)
        else:
            return
        raise ConfigurationError(message)

    # else pydantic would call it for a model within a model, too
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def _described(error: FieldError, model: type[PublicModel]) -> str:
    if error.kind == "extra_forbidden":
        found = similar_options(error.location, [option.location for option in options_of(model)])
        return f"{model.__name__} has no option {error.path!r}{suggestion(map(_as_argument, found))}"
    value = f" (got {error.value!r})" if isinstance(error.value, str | int | float) else ""
    return f"{model.__name__}: {error}{value}"


def _as_argument(name: str) -> str:
    table, dot, option = name.rpartition(".")
    return f"{table}={{'{option}': ...}}" if dot else name
