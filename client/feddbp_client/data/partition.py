"""The Dirichlet split of a data set over clients, and each client's split into training and test samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from feddbp_client.data.images import DataError

if TYPE_CHECKING:
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]

TRAIN_SHARE: Final = 0.75
FEWEST_TO_TRAIN: Final = 2
"""Batch statistics need more than one sample for a variance."""
FEWEST_SAMPLES: Final = FEWEST_TO_TRAIN + 1
"""One more, for the test."""

_SPLIT_ATTEMPTS: Final = 10_000
"""CIFAR-10 over 20 clients at alpha 0.1 takes one to three; a fine split of the 1,797 digits takes thousands."""
_DRAW_ATTEMPTS: Final = 100
_LARGEST_SEED: Final = 2**32 - 1


def least_samples(total: int, clients: int, batch_size: int) -> int:
    """Samples every client must get: enough for one training batch, but no more than half an even share."""
    return max(FEWEST_SAMPLES, int(min(batch_size / (1 - TRAIN_SHARE), total / clients / 2)))


def dirichlet_split(
    labels: npt.NDArray[np.int64], *, clients: int, alpha: float, seed: int, least: int
) -> tuple[Indices, ...]:
    """Indices into labels for each client; the same arguments give the same split on every machine.

    Each class is split in proportions drawn from Dir(alpha); clients that already hold an even share get nothing
    more. The whole split is drawn again while a client has fewer than `least` samples.
    """
    _check_split(len(labels), clients, alpha, seed, least)
    # The legacy generator, because numpy guarantees its stream: machines with different numpy versions must compute the
    # same split.
    random = np.random.RandomState(seed)
    by_class = [np.flatnonzero(labels == number) for number in np.unique(labels)]
    for _ in range(_SPLIT_ATTEMPTS):
        pieces, sizes = _draw_split(by_class, len(labels), clients, alpha, random)
        if sizes.min() >= least:
            return tuple(_share(pieces, client) for client in range(clients))
    raise DataError(
        f"no split of {len(labels)} samples gave each of {clients} clients {least} in {_SPLIT_ATTEMPTS} "
        f"draws with alpha {alpha:g}; take fewer clients, a larger alpha or a smaller batch"
    )


def train_test_split(samples: int, *, seed: int, client_id: int) -> tuple[Indices, Indices]:
    """Shuffled positions 0..samples-1: three quarters for training, the rest for the test; not stratified."""
    if samples < FEWEST_SAMPLES:
        raise DataError(f"client {client_id} has {samples} samples, it needs at least {FEWEST_SAMPLES}")
    order = shuffled(samples, seed=seed, client_id=client_id)
    cut = math.floor(samples * TRAIN_SHARE)
    return order[:cut], order[cut:]


def held_out_samples(samples: int, share: float) -> int:
    """Training samples held out for validation: at least one if any are asked for, unless too few would be left."""
    if not share:
        return 0
    return max(0, min(max(1, math.floor(samples * share)), samples - FEWEST_TO_TRAIN))


def shuffled(samples: int, *, seed: int, client_id: int) -> Indices:
    """0..samples-1 in an order that depends only on the seed and the client."""
    _check_seed(seed)
    _check_seed(client_id, "client id")
    return np.random.RandomState([seed, client_id]).permutation(samples).astype(np.int64)


@dataclass(frozen=True)
class _SplitClass:
    """The samples of a class in shuffled order, and the bounds of each client's piece."""

    members: Indices
    bounds: Indices


def _draw_split(
    by_class: list[Indices], total: int, clients: int, alpha: float, random: np.random.RandomState
) -> tuple[list[_SplitClass], Indices]:
    """One draw of the whole split, and the number of samples of each client.

    Pieces stay bounds until a draw is accepted: few samples, many clients and a small alpha can take thousands.
    """
    pieces: list[_SplitClass] = []
    sizes = np.zeros(clients, dtype=np.int64)
    for members in by_class:
        shuffled_members = members.copy()
        random.shuffle(shuffled_members)
        open_clients = sizes < total / clients
        bounds = _bounds(_proportions(open_clients, alpha, random), len(members))
        pieces.append(_SplitClass(shuffled_members, bounds))
        sizes += np.diff(bounds)
    return pieces, sizes


def _share(pieces: list[_SplitClass], client: int) -> Indices:
    return np.concatenate([piece.members[piece.bounds[client] : piece.bounds[client + 1]] for piece in pieces])


def _proportions(
    open_clients: npt.NDArray[np.bool_], alpha: float, random: np.random.RandomState
) -> npt.NDArray[np.float64]:
    """Proportions of a class over the clients that are not full, drawn again while they sum to zero.

    With a small alpha all the weight may fall on full clients; with a tiny one every component may underflow.
    """
    for _ in range(_DRAW_ATTEMPTS):
        drawn = np.where(open_clients, random.dirichlet(np.full(len(open_clients), alpha)), 0.0)
        whole = drawn.sum()
        if np.isfinite(whole) and whole > 0:
            return np.asarray(drawn / whole, dtype=np.float64)
    raise DataError(f"alpha {alpha:g} is too small to draw a split for {len(open_clients)} clients")


def _bounds(proportions: npt.NDArray[np.float64], samples: int) -> Indices:
    """Client k's piece is bounds[k]..bounds[k+1]; the last client takes the remainder.

    When the proportions sum to slightly less than 1, that remainder is one sample even if the last client is full.
    This is kept, because published results use splits made this way.
    """
    bounds = np.zeros(len(proportions) + 1, dtype=np.int64)
    bounds[1:] = np.floor(np.cumsum(proportions) * samples)
    bounds[-1] = samples
    return bounds


def _check_split(total: int, clients: int, alpha: float, seed: int, least: int) -> None:
    if clients < 1:
        raise DataError(f"cannot split data over {clients} clients")
    if not (math.isfinite(alpha) and alpha > 0):
        raise DataError(f"alpha is {alpha}, it must be a positive number")
    if total < 1 or least * clients > total:
        raise DataError(f"{total} samples are too few for {clients} clients with at least {least} each")
    _check_seed(seed)


def _check_seed(value: int, name: str = "seed") -> None:
    if not 0 <= value <= _LARGEST_SEED:
        raise DataError(f"{name} is {value}, it must be within 0..{_LARGEST_SEED}")
