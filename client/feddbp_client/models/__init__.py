"""Backbones by name, all with features of the same width, and their heads."""

from feddbp_client.models.backbones import build_backbone
from feddbp_client.models.blocks import ImageShape, ModelError, build_head

__all__ = ["ImageShape", "ModelError", "build_backbone", "build_head"]
