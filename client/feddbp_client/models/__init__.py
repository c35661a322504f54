"""Backbones by name, every one with a feature of the same width, and heads for them."""

from feddbp_client.models.blocks import build_head
from feddbp_client.models.errors import ModelError
from feddbp_client.models.registry import build_backbone
from feddbp_client.models.shapes import ImageShape

__all__ = ["ImageShape", "ModelError", "build_backbone", "build_head"]
