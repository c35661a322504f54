from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from feddbp_common.config.nested import dotted, get, leaves, put, undotted, without

_NAMES = st.text("abc_", min_size=1, max_size=3)
_TREES = st.recursive(
    st.dictionaries(_NAMES, st.integers()),
    lambda branch: st.dictionaries(_NAMES, st.integers() | branch.filter(bool)),
    max_leaves=20,
)


@given(_TREES)
def test_a_tree_can_be_rebuilt_from_its_leaves(tree: dict[str, Any]) -> None:
    assert undotted(dotted(tree)) == tree


@given(_TREES)
def test_every_leaf_can_be_read_and_removed_by_location(tree: dict[str, Any]) -> None:
    for location, value in leaves(tree):
        assert get(tree, location) == value
        assert [place for place, _ in leaves(without(tree, location))] == [
            place for place, _ in leaves(tree) if place != location
        ]


def test_a_table_in_whole_is_a_leaf() -> None:
    tree = {"run": {"settings": {"tau": 1}, "rounds": 3}}
    assert dict(leaves(tree, whole={("run", "settings")})) == {("run", "settings"): {"tau": 1}, ("run", "rounds"): 3}


def test_put_creates_missing_tables() -> None:
    tree: dict[str, Any] = {"run": {"rounds": 3}}
    put(tree, ("run", "data", "alpha"), 0.1)
    assert tree == {"run": {"rounds": 3, "data": {"alpha": 0.1}}}


def test_get_returns_none_for_an_unknown_location() -> None:
    assert get({"rounds": 3}, ("rounds", "more")) is None
    assert get({"rounds": 3}, ("round",)) is None
