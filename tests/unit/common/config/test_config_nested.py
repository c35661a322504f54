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
def test_a_tree_is_the_same_again_when_made_of_its_leaves(tree: dict[str, Any]) -> None:
    assert undotted(dotted(tree)) == tree


@given(_TREES)
def test_every_leaf_is_found_at_its_location_and_gone_without_it(tree: dict[str, Any]) -> None:
    for location, value in leaves(tree):
        assert get(tree, location) == value
        assert [place for place, _ in leaves(without(tree, location))] == [
            place for place, _ in leaves(tree) if place != location
        ]


def test_a_table_that_is_a_value_itself_is_not_taken_apart() -> None:
    tree = {"run": {"settings": {"tau": 1}, "rounds": 3}}
    assert dict(leaves(tree, whole={("run", "settings")})) == {("run", "settings"): {"tau": 1}, ("run", "rounds"): 3}


def test_putting_a_value_makes_the_tables_on_its_way() -> None:
    tree: dict[str, Any] = {"run": {"rounds": 3}}
    put(tree, ("run", "data", "alpha"), 0.1)
    assert tree == {"run": {"rounds": 3, "data": {"alpha": 0.1}}}


def test_nothing_is_where_a_value_ends_or_a_name_is_unknown() -> None:
    assert get({"rounds": 3}, ("rounds", "more")) is None
    assert get({"rounds": 3}, ("round",)) is None
