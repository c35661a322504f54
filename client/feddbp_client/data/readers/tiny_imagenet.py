"""Tiny-ImageNet-200 from its published zip: the training folder, classes in the order of their WordNet ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from feddbp_client.data.decoding import decode_all
from feddbp_client.data.images import DataError, LabelledImages, labelled
from feddbp_client.data.readers.archives import ZipMembers

if TYPE_CHECKING:
    from pathlib import Path

_WORDS = "tiny-imagenet-200/words.txt"
_IMAGE = r"tiny-imagenet-200/train/(n\d{8})/images/[^/]+\.JPEG"


def read_tiny_imagenet(archive: Path) -> LabelledImages:
    with ZipMembers(archive, re.compile(f"{_IMAGE}|{re.escape(_WORDS)}")) as members:
        names = [name for name in members.names if name != _WORDS]
        if not names or _WORDS not in members.names:
            raise DataError(f"{archive}: has no training images or no {_WORDS}")
        wnid_of_image = [name.split("/")[2] for name in names]
        wnids = sorted(set(wnid_of_image))
        number = {wnid: index for index, wnid in enumerate(wnids)}
        labels = np.array([number[wnid] for wnid in wnid_of_image], dtype=np.int64)
        words = _words(members.read(_WORDS))
        images = decode_all(len(names), lambda i: (members.read(names[i]), f"{archive}: {names[i]}"))
    return labelled(images, labels, [words.get(wnid, wnid) for wnid in wnids], origin=str(archive))


def _words(table: bytes) -> dict[str, str]:
    lines = (line.partition("\t") for line in table.decode("utf-8", errors="replace").splitlines())
    return {wnid: words.strip() for wnid, _, words in lines}
