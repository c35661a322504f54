"""Architectures by name, and a user's own by reference. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from feddbp_client.models import cnn, guide, imagenet, mini, random_features, resnet_small, vit
from feddbp_client.models.blocks import Backbone, FeaturePool, ImageShape, ModelError
from feddbp_client.training.references import load_function
from feddbp_common.config.catalog import FEATURE_DIM
from feddbp_common.config.diagnostics import did_you_mean
from feddbp_common.config.types import REFERENCE_MARK
from feddbp_common.errors import one_line
from feddbp_common.methods.frozen import RANDOM_NETWORK
from feddbp_common.methods.guide_network import GUIDES

Builder = Callable[[ImageShape], nn.Module]
"""Builds a body that turns [B, channels, height, width] into [B, any width]."""

_BUILDERS: Final[dict[str, Builder]] = {
    "cnn4": cnn.cnn4,
    "googlenet": imagenet.googlenet,
    "mobilenet_v2": imagenet.mobilenet_v2,
    **{f"resnet{depth}": imagenet.resnet(depth) for depth in (18, 34, 50, 101, 152)},
    **{f"resnet{2 + 2 * stages}": resnet_small.resnet(stages) for stages in (1, 2, 3, 4)},
    **{name: partial(guide.GuideBody, network) for name, network in GUIDES.items()},
    "vit_b_16": vit.vit_b(16),
    "vit_b_32": vit.vit_b(32),
    "mini_plain": mini.mini_plain,
    "mini_residual": mini.mini_residual,
    "mini_depthwise": mini.mini_depthwise,
    "mini_inception": mini.mini_inception,
    "mini_dense": mini.mini_dense,
    "mini_squeeze": mini.mini_squeeze,
    "mini_mixer": mini.mini_mixer,
    "mini_dilated": mini.mini_dilated,
    RANDOM_NETWORK: random_features.RandomFeatures,
}


def build_backbone(architecture: str, image_shape: ImageShape, *, feature_dim: int = FEATURE_DIM) -> Backbone:
    """Builds a network from images to features of the common width, with fresh weights."""
    check_architecture(architecture)
    own = REFERENCE_MARK in architecture
    body = _own_body(architecture, image_shape) if own else _BUILDERS[architecture](image_shape)
    return Backbone(body, FeaturePool(feature_dim))


def check_architecture(architecture: str) -> None:
    """Raises ModelError if there is none of that name, or a user's own cannot be imported."""
    if REFERENCE_MARK in architecture:
        _own_function(architecture)
    elif architecture not in _BUILDERS:
        hint = did_you_mean(architecture, _BUILDERS, most=3) or f"; there are: {', '.join(_BUILDERS)}"
        raise ModelError(f"no architecture is called {architecture!r}{hint}")


def _own_function(reference: str) -> Builder:
    function: Builder = load_function(reference, what="--model", error_type=ModelError)
    return function


def _own_body(reference: str, image_shape: ImageShape) -> nn.Module:
    """Builds a user's model and checks it on two blank images, before it could fail in a round."""
    function = _own_function(reference)
    name = reference.rpartition(":")[2]
    try:
        body = function(image_shape)
    except Exception as error:
        raise ModelError(f"--model {reference}: {name}({image_shape}) failed: {one_line(error)}") from error
    if not isinstance(body, nn.Module):
        raise ModelError(f"--model {reference}: {name} returned {type(body).__name__}, not a torch module")
    _check_weights(reference, body)
    _check_output(reference, body, image_shape)
    return body


def _check_weights(reference: str, body: nn.Module) -> None:
    """A checkpoint stores every tensor once, under one name."""
    names: dict[int, str] = {}
    for name, tensor in body.state_dict(keep_vars=True).items():
        first = names.setdefault(id(tensor), name)
        if first != name:
            raise ModelError(
                f"--model {reference}: {first} and {name} are the same tensor; tied weights cannot be stored"
            )


def _check_output(reference: str, body: nn.Module, image_shape: ImageShape) -> None:
    device = next((parameter.device for parameter in body.parameters()), None)
    modes = {module: module.training for module in body.modules()}
    body.eval()
    try:
        with torch.no_grad():
            features = body(torch.zeros(2, *image_shape, device=device))
    except Exception as error:
        raise ModelError(
            f"--model {reference}: does not take images of shape {image_shape}: {one_line(error)}"
        ) from error
    finally:
        # one by one: a part that the user has put into eval mode stays in it
        for module, training in modes.items():
            module.training = training
    if not isinstance(features, Tensor):
        raise ModelError(f"--model {reference}: two images gave {type(features).__name__}, not [2, features]")
    if features.ndim != 2 or len(features) != 2 or not features.numel() or not features.is_floating_point():
        found = f"{features.dtype} of shape {tuple(features.shape)}"
        raise ModelError(f"--model {reference}: two images gave {found}, not [2, features] in floating point")
