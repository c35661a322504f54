"""scikit-learn's handwritten digits: real images that come with the package, so a demo needs no files."""

from __future__ import annotations

import numpy as np

from feddbp_client.data.images import LabelledImages, labelled, resized

_SIDE = 16
"""Twice the original eight, which leaves too little to pool for the smallest network."""


def read_digits() -> LabelledImages:
    # Here and not above: scikit-learn takes a second to import and only this set needs it.
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = np.rint(found.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
    names = [str(name) for name in found.target_names]
    return labelled(resized(grey, _SIDE), found.target, names, origin="scikit-learn digits")
