"""Compression of weights by truncated singular value decomposition."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from feddbp_common.errors import PayloadError
from feddbp_common.wire import Dim, PayloadRules, TensorRule, WireType, check_manifest, check_values, decode, encode
from feddbp_common.wire.payload import FloatArray, Payload
from feddbp_common.wire.svd import SIGMA_BOUND, compress, compressed_rules, decompress, dense_shapes

Array = npt.NDArray[np.float32]

shapes = st.one_of(
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 6)),
)
tensors = shapes.flatmap(
    lambda shape: st_numpy.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32, allow_subnormal=False))
)
energies = st.sampled_from([0.01, 0.5, 0.9, 0.95, 0.98, 0.999, 1.0])


def uniform(*shape: int, bound: float = 1.0, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-bound, bound, shape).astype(np.float32)


def low_rank(rows: int, columns: int, rank: int) -> Array:
    return uniform(rows, rank, seed=1) @ uniform(rank, columns, seed=2)


def numbers(tensors: dict[str, FloatArray]) -> int:
    return sum(tensor.size for tensor in tensors.values())


def reference_rank(tensor: Array, energy: float) -> int:
    """Finds the smallest rank that keeps more than the energy over all kernels by trying all."""
    kernels = tensor.reshape(-1, *tensor.shape[-2:]).astype(np.float64)
    squares = [np.linalg.svd(kernel, compute_uv=False) ** 2 for kernel in kernels]
    full = len(squares[0])
    total = sum(float(square.sum()) for square in squares)
    for rank in range(1, full):
        if sum(float(square[:rank].sum()) for square in squares) > energy * total:
            return rank
    return full


def rank_of(compressed: dict[str, FloatArray], name: str = "w") -> int:
    return int(compressed[name + ".sigma"].shape[-1])


# --- loss


@given(tensors, energies)
@settings(deadline=None)
def test_the_loss_is_within_the_energy(tensor: Array, energy: float) -> None:
    restored = decompress(compress({"w": tensor}, energy))["w"]
    assert restored.shape == tensor.shape
    assert restored.dtype == np.float32
    lost = float(np.square(tensor.astype(np.float64) - restored).sum())
    norm = float(np.square(tensor.astype(np.float64)).sum())
    assert lost <= (1 - energy) * norm + 1e-10 * norm + 1e-30


@given(tensors, energies)
@settings(deadline=None)
def test_compression_never_increases_the_size(tensor: Array, energy: float) -> None:
    compressed = compress({"w": tensor}, energy)
    assert numbers(compressed) <= tensor.size
    assert set(compressed) in ({"w"}, {"w.u", "w.sigma", "w.v"})


@pytest.mark.parametrize("tensor", [uniform(7, 40), uniform(40, 7), uniform(4, 3, 5, 5), low_rank(30, 30, 4)])
def test_full_energy_is_lossless_up_to_rounding(tensor: Array) -> None:
    assert np.allclose(decompress(compress({"w": tensor}, 1.0))["w"], tensor, rtol=1e-6, atol=1e-6)


def test_a_matrix_of_low_rank_is_restored_almost_exactly() -> None:
    tensor = low_rank(60, 80, 3)
    compressed = compress({"w": tensor}, 0.999999)
    assert rank_of(compressed) == 3
    assert compressed["w.u"].shape == (60, 3)
    assert compressed["w.v"].shape == (3, 80)
    assert np.allclose(decompress(compressed)["w"], tensor, atol=1e-5)


# --- the rank


@pytest.mark.parametrize("energy", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (50, 50)])
def test_the_rank_of_a_matrix_is_the_smallest_that_keeps_the_energy(shape: tuple[int, int], energy: float) -> None:
    tensor = (low_rank(*shape, 5) + 0.05 * uniform(*shape)).astype(np.float32)
    assert rank_of(compress({"w": tensor}, energy)) == reference_rank(tensor, energy)


@pytest.mark.parametrize("energy", [0.3, 0.45, 0.7])
def test_all_kernels_of_a_convolution_share_one_rank(energy: float) -> None:
    tensor = uniform(6, 4, 5, 5)
    compressed = compress({"w": tensor}, energy)
    rank = reference_rank(tensor, energy)
    assert rank in (1, 2)
    assert compressed["w.u"].shape == (6, 4, 5, rank)
    assert compressed["w.sigma"].shape == (6, 4, rank)
    assert compressed["w.v"].shape == (6, 4, rank, 5)
    for i in range(6):
        for j in range(4):
            u, sigma, v = np.linalg.svd(tensor[i, j].astype(np.float64))
            best = (u[:, :rank] * sigma[:rank]) @ v[:rank]
            assert np.allclose(decompress(compressed)["w"][i, j], best, atol=1e-5)


def test_factors_are_those_of_the_singular_value_decomposition() -> None:
    tensor = low_rank(30, 50, 4)
    compressed = compress({"w": tensor}, 0.9)
    rank = rank_of(compressed)
    assert np.allclose(compressed["w.sigma"], np.linalg.svd(tensor, compute_uv=False)[:rank], rtol=1e-5)
    assert np.allclose(compressed["w.u"].T @ compressed["w.u"], np.eye(rank), atol=1e-5)
    assert np.allclose(compressed["w.v"] @ compressed["w.v"].T, np.eye(rank), atol=1e-5)


def test_a_flat_spectrum_keeps_full_rank() -> None:
    """Nine of ten directions of an untrained head hold 92.5 % of its energy, below a threshold of 0.95."""
    head = uniform(10, 512, bound=512**-0.5)
    squares = np.linalg.svd(head, compute_uv=False) ** 2
    assert 0.92 < squares[:9].sum() / squares.sum() < 0.94
    assert np.array_equal(decompress(compress({"head.weight": head}, 0.95))["head.weight"], head)
    assert np.array_equal(decompress(compress({"eye": np.eye(8, dtype=np.float32)}, 0.95))["eye"], np.eye(8))


def test_an_untrained_layer_is_sent_dense_because_its_factors_are_larger() -> None:
    layer = uniform(512, 1600, bound=1600**-0.5)
    assert 420 < reference_rank(layer, 0.95) < 440
    compressed = compress({"fc.weight": layer}, 0.95)
    assert list(compressed) == ["fc.weight"]
    assert compressed["fc.weight"] is layer


@pytest.mark.parametrize("shape", [(30, 20), (2, 2, 5, 5)])
def test_a_tensor_of_zeros_is_restored(shape: tuple[int, ...]) -> None:
    zeros = np.zeros(shape, dtype=np.float32)
    assert np.array_equal(decompress(compress({"w": zeros}, 0.95))["w"], zeros)


def test_a_kernel_of_zeros_among_others_is_restored() -> None:
    tensor = np.stack([np.zeros((1, 5, 5), dtype=np.float32), np.ones((1, 5, 5), dtype=np.float32)])
    compressed = compress({"w": tensor}, 0.95)
    assert rank_of(compressed) == 1
    assert np.allclose(decompress(compressed)["w"], tensor, atol=1e-6)


# --- the form


def test_vectors_and_scalars_are_sent_unchanged() -> None:
    given_tensors = {"bias": uniform(3), "scale": uniform(1)[0].reshape(()), "cube": uniform(3, 3, 3)}
    assert compress(given_tensors, 0.1) == given_tensors


def test_a_vector_of_three_is_not_mistaken_for_three_factors() -> None:
    bias = uniform(3)
    compressed = compress({"head.weight": low_rank(30, 30, 1), "head.bias": bias}, 0.95)
    assert list(compressed) == ["head.weight.u", "head.weight.sigma", "head.weight.v", "head.bias"]
    assert np.array_equal(decompress(compressed)["head.bias"], bias)


def test_the_order_of_tensors_is_kept() -> None:
    given_tensors = {"b": uniform(3), "a": low_rank(30, 30, 1), "c": uniform(5, 5)}
    assert list(decompress(compress(given_tensors, 0.9))) == ["b", "a", "c"]


def test_the_same_input_gives_the_same_bits() -> None:
    tensor = low_rank(30, 50, 4)
    one, other = (compress({"w": tensor.copy()}, 0.9) for _ in range(2))
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_a_tensor_beyond_the_bounds_of_factors_is_sent_dense() -> None:
    tensor = (low_rank(30, 30, 1) * 1e5).astype(np.float32)
    assert np.linalg.norm(tensor) > SIGMA_BOUND
    assert list(compress({"w": tensor}, 0.9)) == ["w"]


# --- errors


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(4,), (30, 30), (2, 2, 5, 5)])
def test_a_value_that_is_not_finite_is_refused_with_the_name_of_its_tensor(bad: float, shape: tuple[int, ...]) -> None:
    tensor = np.zeros(shape, dtype=np.float32)
    tensor.flat[0] = bad
    with pytest.raises(PayloadError, match=r"^fc\.weight: has a value that is not finite"):
        compress({"fc.weight": tensor}, 0.95)


def test_a_tensor_whose_decomposition_fails_is_sent_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigh", fails)
    tensor = low_rank(30, 50, 1)
    assert compress({"w": tensor}, 0.5)["w"] is tensor


@pytest.mark.parametrize("name", ["w.u", "w.sigma", "w.v"])
def test_names_of_factors_are_reserved(name: str) -> None:
    with pytest.raises(PayloadError, match="reserved for factors"):
        compress({name: uniform(3)}, 0.95)


@pytest.mark.parametrize(
    ("given_shapes", "message"),
    [
        ({"w.u": (4, 2)}, "w.sigma: is missing"),
        ({"w.u": (4, 2), "w.sigma": (2,)}, "w.v: is missing"),
        ({"w": (4, 4), "w.u": (4, 2), "w.sigma": (2,), "w.v": (2, 4)}, "w.u: is sent together with w itself"),
        ({"w.u": (4, 2), "w.sigma": (3,), "w.v": (2, 4)}, "cannot be multiplied"),
        ({"w.u": (4, 2), "w.sigma": (2,), "w.v": (3, 4)}, "cannot be multiplied"),
        ({"w.u": (4, 2), "w.sigma": (2,), "w.v": (1, 1, 2, 4)}, "cannot be multiplied"),
        ({"w.u": (3, 2, 5, 1), "w.sigma": (2, 3, 1), "w.v": (3, 2, 1, 5)}, "cannot be multiplied"),
        ({"w.u": (2,), "w.sigma": (2,), "w.v": (2,)}, "cannot be multiplied"),
        ({"w.u": (), "w.sigma": (), "w.v": ()}, "cannot be multiplied"),
    ],
)
def test_factors_that_do_not_belong_together_are_refused(
    given_shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(PayloadError, match=message):
        dense_shapes(given_shapes)
    with pytest.raises(PayloadError, match=message):
        decompress({name: np.zeros(shape, dtype=np.float32) for name, shape in given_shapes.items()})


def test_decompressed_shapes_follow_from_compressed_shapes() -> None:
    compressed = compress({"a": low_rank(30, 50, 1), "b": uniform(6, 4, 5, 5), "c": uniform(7)}, 0.3)
    found = dense_shapes({name: tensor.shape for name, tensor in compressed.items()})
    assert found == {"a": (30, 50), "b": (6, 4, 5, 5), "c": (7,)}


# --- on the wire


RULES = PayloadRules(
    tensors=compressed_rules(
        (
            TensorRule(name="conv", shape=(Dim.exactly(6), Dim(1, 16), Dim.exactly(5), Dim.exactly(5))),
            TensorRule(name="fc", shape=(Dim.exactly(30), Dim(1, 99))),
            TensorRule(name="bias", shape=(Dim.exactly(3),)),
        )
    )
)


@pytest.mark.parametrize("real_type", [WireType.FLOAT32, WireType.FLOAT16, WireType.BFLOAT16])
@pytest.mark.parametrize("energy", [0.3, 0.95, 1.0])
def test_both_forms_pass_the_rules_and_are_restored_after_encoding(energy: float, real_type: WireType) -> None:
    given_tensors = {"conv": uniform(6, 4, 5, 5), "fc": low_rank(30, 50, 2), "bias": uniform(3)}
    encoded = encode(Payload(tensors=compress(given_tensors, energy)), real_type=real_type)
    check_manifest(encoded.manifest, RULES, max_bytes=1 << 20)
    arrived = decode(encoded.manifest, encoded.body())
    check_values(arrived, RULES)
    restored = decompress(arrived.tensors)
    coarse = 1e-5 if real_type is WireType.FLOAT32 else 0.1
    for name, tensor in decompress(compress(given_tensors, energy)).items():
        assert np.allclose(restored[name], tensor, atol=coarse)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("fc.u", np.full((30, 1), 1.5, dtype=np.float32), "the maximum is 1.01"),
        ("fc.v", np.full((1, 50), -1.5, dtype=np.float32), "the minimum is -1.01"),
        ("fc.sigma", np.full(1, 2e3, dtype=np.float32), "the maximum is 1000"),
        ("fc.sigma", np.full(1, -1, dtype=np.float32), "the minimum is 0"),
    ],
)
def test_factors_beyond_their_bounds_are_refused(name: str, tensor: Array, message: str) -> None:
    compressed = compress({"fc": low_rank(30, 50, 1)}, 0.9)
    with pytest.raises(PayloadError, match=message):
        check_values(Payload(tensors={**compressed, name: tensor}), RULES)


def test_the_product_of_forged_factors_is_clipped() -> None:
    rank = 30
    forged = {
        "fc.u": np.ones((30, rank), np.float32),
        "fc.sigma": np.full(rank, 1e3, np.float32),
        "fc.v": np.ones((rank, 50), np.float32),
    }
    check_values(Payload(tensors=forged), RULES)  # each factor is within its bounds
    restored = decompress(forged)["fc"]
    assert restored.max() == pytest.approx(1020.1)


def test_a_rank_above_the_shorter_side_is_refused_by_the_manifest() -> None:
    factors = {"fc.u": uniform(30, 31), "fc.sigma": np.ones(31, dtype=np.float32), "fc.v": uniform(31, 50)}
    encoded = encode(Payload(tensors=factors))
    with pytest.raises(PayloadError, match=r"fc\.u: has shape \[30, 31\], not \[30, 1 to 30\]"):
        check_manifest(encoded.manifest, RULES, max_bytes=1 << 20)
