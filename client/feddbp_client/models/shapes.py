"""The shape of an image as models are told of it."""

from typing import TypeAlias

ImageShape: TypeAlias = tuple[int, int, int]
"""(channels, height, width)."""
