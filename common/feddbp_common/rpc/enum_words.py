"""Values of the protocol's enums as words."""

from __future__ import annotations

import re

from google.protobuf.descriptor import EnumDescriptor


def enum_word(kind: EnumDescriptor, value: int) -> str:
    """The value's name without the enum's, in lower case: "finished" for PHASE_FINISHED.

    A value that a later version of the protocol added is its number: "phase 99".
    """
    words = re.findall("[A-Z][a-z]+", kind.name)
    known = kind.values_by_number.get(value)
    if known is None:
        return f"{words[-1].lower()} {value}"
    return str(known.name).removeprefix("_".join(words).upper() + "_").lower()
