"""Growing sequences against plain tuples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.growing import ByNumber, Growing


@given(st.lists(st.tuples(st.integers(0, 30), st.integers())))
def test_every_view_keeps_its_items_whatever_its_successors_append(
    appends: list[tuple[int, int]],
) -> None:
    views: list[Growing[int]] = [Growing()]
    models: list[tuple[int, ...]] = [()]
    for choice, item in appends:
        parent = choice % len(views)  # any view may get another successor
        views.append(views[parent].append(item))
        models.append((*models[parent], item))
    for view, model in zip(views, models, strict=True):
        assert tuple(view) == model
        assert len(view) == len(model)
        assert view[1:] == model[1:]
        assert view[-2:] == model[-2:]
        assert dict(ByNumber(view)) == dict(enumerate(model))


def test_an_index_outside_is_refused() -> None:
    one = Growing[int]().append(7)
    one.append(8)
    assert (one[0], one[-1]) == (7, 7)
    with pytest.raises(IndexError):
        one[1]
    for number in (-1, 1):
        with pytest.raises(KeyError):
            ByNumber(one)[number]
