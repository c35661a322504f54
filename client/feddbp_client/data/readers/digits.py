"""scikit-learn's handwritten digits, which come with the package: a demo needs no download."""

from __future__ import annotations

import numpy as np

from feddbp_client.data.decoding import resized
from feddbp_client.data.images import LabelledImages, labelled

_SIDE = 16
"""Twice the original side of 8, which is too small for the pooling of the smallest network."""


def read_digits() -> LabelledImages:
    # Imported here: scikit-learn takes a second, and only this data set needs it.
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = np.rint(found.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    names = [str(name) for name in found.target_names]
    return labelled(resized(grey, _SIDE), found.target, names, origin="scikit-learn digits")
