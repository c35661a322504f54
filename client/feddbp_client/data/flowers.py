"""Oxford Flowers-102 from its published files: photographs, their labels, and the official split, pooled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feddbp_client.data.archives import tar_members
from feddbp_client.data.errors import DataError
from feddbp_client.data.images import LabelledImages, decode, labelled

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

_SIDE = 64
_IMAGE = re.compile(r"jpg/image_(\d{5})\.jpg")

# The published files number the classes but do not name them.
CLASS_NAMES: Final = tuple(
    """
pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily,
moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear
thistle, yellow iris, globe-flower, purple coneflower, peruvian lily, balloon flower, giant white arum
lily, fire lily, pincushion flower, fritillary, red ginger, grape hyacinth, corn poppy, prince of wales
feathers, stemless gentian, artichoke, sweet william, carnation, garden phlox, love in the mist, mexican
aster, alpine sea holly, ruby-lipped cattleya, cape flower, great masterwort, siam tulip, lenten rose,
barbeton daisy, daffodil, sword lily, poinsettia, bolero deep blue, wallflower, marigold, buttercup,
oxeye daisy, common dandelion, petunia, wild pansy, primula, sunflower, pelargonium, bishop of llandaff,
gaura, geranium, orange dahlia, pink-yellow dahlia, cautleya spicata, japanese anemone, black-eyed
susan, silverbush, californian poppy, osteospermum, spring crocus, bearded iris, windflower, tree poppy,
gazania, azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus lotus, toad lily,
anthurium, frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen,
watercress, canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow,
mexican petunia, bromelia, blanket flower, trumpet creeper, blackberry lily
""".replace("\n", " ")
    .strip()
    .split(", ")
)


def read_flowers102(photographs: Path, label_file: Path, split_file: Path) -> LabelledImages:
    """In the order training, validation, test; the files number photographs and classes from 1."""
    labels = _numbers(label_file, "labels") - 1
    order = np.concatenate([_numbers(split_file, part) for part in ("trnid", "valid", "tstid")]) - 1
    if not np.array_equal(np.sort(order), np.arange(len(labels))):
        raise DataError(f"{split_file}: does not name each of the {len(labels)} labelled photographs once")
    images = np.empty((len(labels), _SIDE, _SIDE, 3), dtype=np.uint8)
    missing = set(range(len(labels)))
    for name, content in tar_members(photographs, _IMAGE):
        number = int(name[-9:-4]) - 1
        if number in missing:
            images[number] = decode(content, origin=f"{photographs}: {name}", size=_SIDE)
            missing.remove(number)
    if missing:
        raise DataError(f"{photographs}: has no jpg/image_{min(missing) + 1:05d}.jpg")
    return labelled(images[order], labels[order], CLASS_NAMES, origin=str(label_file))


def _numbers(path: Path, key: str) -> npt.NDArray[np.int64]:
    # Here and not above: scipy is slow to import and only this data set needs it.
    from scipy.io import loadmat

    try:
        table: dict[str, Any] = loadmat(path)
        return np.asarray(table[key]).ravel().astype(np.int64)
    except Exception as error:  # scipy raises its own, numpy's and Python's errors on damaged files
        raise DataError(f"{path}: cannot be read as the published {key}: {error!r}") from error
