"""Class names of the data sets whose files only number their classes."""

from __future__ import annotations

from typing import Final


def _listed(names: str) -> tuple[str, ...]:
    return tuple(" ".join(names.split()).split(", "))


CIFAR10_CLASSES: Final = _listed("airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck")

CIFAR100_CLASSES: Final = _listed(
    """
apple, aquarium_fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy, bridge, bus,
butterfly, camel, can, castle, caterpillar, cattle, chair, chimpanzee, clock, cloud, cockroach, couch,
crab, crocodile, cup, dinosaur, dolphin, elephant, flatfish, forest, fox, girl, hamster, house,
kangaroo, keyboard, lamp, lawn_mower, leopard, lion, lizard, lobster, man, maple_tree, motorcycle,
mountain, mouse, mushroom, oak_tree, orange, orchid, otter, palm_tree, pear, pickup_truck, pine_tree,
plain, plate, poppy, porcupine, possum, rabbit, raccoon, ray, road, rocket, rose, sea, seal, shark,
shrew, skunk, skyscraper, snail, snake, spider, squirrel, streetcar, sunflower, sweet_pepper, table,
tank, telephone, television, tiger, tractor, train, trout, tulip, turtle, wardrobe, whale, willow_tree,
wolf, woman, worm
"""
)

FLOWERS102_CLASSES: Final = _listed(
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
"""
)
