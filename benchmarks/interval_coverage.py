"""How often the intervals of a report contain the true difference.

`python -m benchmarks.interval_coverage` draws experiments whose true difference is known: 20 clients with 60 to 240
test samples, whose differences scatter by chance and by what is particular to a client. The effect may also vary from
one split of the data to the next, by a multiple of the chance that remains in the mean over one split's clients. It
prints how many of 100 experiments have an interval that contains the difference, which should be 95.
"""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np

from feddbp_lab.experiments.report.intervals import SeedObservations, bootstrap_interval

_CLIENTS: Final = 20
_TEST_SAMPLES: Final = (60, 241)
_TRUE: Final = 2.0
"""Points."""
_CLIENT_DEVIATION: Final = 2.0
"""Of a client's own effect, in points."""
_SAMPLE_DEVIATION: Final = 60.0
"""Of the difference on one sample, in points: on most samples both methods agree."""
_VARIATIONS: Final = (0.0, 1.0, 2.0)
_SEEDS: Final = (1, 2, 3, 5)


def coverage(seeds: int, variation: float, *, experiments: int, random: np.random.Generator) -> float:
    """The share of experiments whose interval contains the true difference."""
    contained = 0
    for _ in range(experiments):
        interval = bootstrap_interval([_split(variation, random) for _ in range(seeds)], replicates=2_000)
        contained += interval.low <= _TRUE <= interval.high
    return contained / experiments


def _split(variation: float, random: np.random.Generator) -> SeedObservations:
    samples = random.integers(*_TEST_SAMPLES, size=_CLIENTS).astype(np.float64)
    scatter = np.sqrt(_CLIENT_DEVIATION**2 + _SAMPLE_DEVIATION**2 / samples)
    chance = np.sqrt((samples**2 * scatter**2).sum()) / samples.sum()  # of the mean over this split's clients
    effect = _TRUE + variation * chance * random.standard_normal()
    return SeedObservations(sums=samples * (effect + scatter * random.standard_normal(_CLIENTS)), samples=samples)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interval_coverage", description=__doc__)
    parser.add_argument("--experiments", type=int, default=1_000, help="of each kind (default: 1000)")
    experiments: int = parser.parse_args().experiments
    random = np.random.default_rng(0)
    print("variation between splits  " + "".join(f"{seeds:>4} seed{'s' if seeds > 1 else ' '}" for seeds in _SEEDS))
    for variation in _VARIATIONS:
        shares = [coverage(seeds, variation, experiments=experiments, random=random) for seeds in _SEEDS]
        print(f"{variation:24.0f}  " + "".join(f"{100 * share:10.0f}" for share in shares))


if __name__ == "__main__":
    main()
