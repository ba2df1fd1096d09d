"""Lists of clients in every order, cut into pages by their marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies.client_order import SORTED_BY, ClientOrder
from remoting.protocol.bodies.operating_body import ClientLine

ROWS = st.dictionaries(st.text(min_size=1, max_size=4), st.sampled_from([0, 1, 0.25, 12.5, 10**12]), max_size=12)


@given(rows=ROWS, falls=st.booleans(), figure=st.sampled_from(["id", "backlog", "messages_in_per_s"]))
def test_pages_are_the_list_cut_anywhere(rows: dict[str, float], figure: str, *, falls: bool) -> None:
    order = ClientOrder(figure, falls)
    listed = sorted(rows, key=lambda name: order.key(rows[name], name))
    by_value = (lambda name: rows[name]) if figure != "id" else (lambda name: name)
    assert list(map(by_value, listed)) == sorted(map(by_value, rows), reverse=falls)
    for at, name in enumerate(listed):
        begin = order.behind(order.mark(rows[name], name))
        assert begin is not None
        assert [one for one in listed if order.key(rows[one], one) > begin] == listed[at + 1 :]


def test_clients_of_one_value_are_in_the_order_of_their_ids() -> None:
    rows = {"c": 1, "a": 1, "b": 2}
    for sort, names in (("-backlog", "bac"), ("backlog", "acb"), ("", "abc"), ("id", "abc"), ("-id", "cba")):
        order = ClientOrder.parse(sort)
        assert "".join(sorted(rows, key=lambda name: order.key(rows[name], name))) == names
        assert ClientOrder.parse(order.sort) == order


def test_every_figure_is_one_of_a_line() -> None:
    line = ClientLine("c", None, "", "5", "tcp", 7, 60, True, 0, 0, 1)
    row = {name: getattr(line, name) for name in ClientLine.__struct_fields__}
    assert all(ClientOrder.parse(name).value(row) in (0, 7) for name in SORTED_BY)


@pytest.mark.parametrize(("sort", "mark"), [("size", ""), ("--id", ""), ("backlog", "x"), ("backlog", "nan c")])
def test_what_is_no_order_or_no_mark_of_it(sort: str, mark: str) -> None:
    with pytest.raises(ValueError, match=r"sort is one of|could not convert|no place"):
        ClientOrder.parse(sort).behind(mark)
