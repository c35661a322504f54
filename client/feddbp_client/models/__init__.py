"""Backbones by name, every one with a feature of the same width, and heads for them."""

from feddbp_client.models.backbones import build_backbone
from feddbp_client.models.blocks import ImageShape, ModelError, build_head

__all__ = ["ImageShape", "ModelError", "build_backbone", "build_head"]
