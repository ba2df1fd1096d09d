"""What replicas gave, and lost of it, moves a group's offset over no message that nobody was given."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker.pop.chain import Link, follow

END = 9


def gave(front: int, matching: Sequence[bool], count: int) -> list[Link]:
    """The links of a replica that gives `count` messages from `front` on, and passes over what does not match."""
    links, start = list[Link](), front
    for offset in [offset for offset in range(front, END) if matching[offset]][:count]:
        links.append((offset, start))
        start = offset + 1
    return links


MATCHING = st.lists(st.booleans(), min_size=END, max_size=END)


@given(MATCHING, st.integers(0, END), st.integers(0, END))
def test_all_of_one_replica_joins_on_to_where_it_began(matching: list[bool], front: int, count: int) -> None:
    links = gave(front, matching, count)
    assert follow(front, links) == (links[-1][0] + 1 if links else front, [offset for offset, _start in links])


@given(
    MATCHING,
    st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), min_size=1, max_size=3),
    st.integers(0, END),
    st.randoms(),
)
def test_nothing_is_passed_over(matching: list[bool], replicas: list[tuple[int, int]], front: int, chance) -> None:
    """Several replicas, each from an offset of its own; any lines lost; told in parts, some of them twice."""
    first, now, taken = front, front, set[int]()
    for began, count in replicas:
        links = [link for link in gave(began, matching, count) if chance.random() < 0.7]
        cut = chance.randint(0, len(links))
        for part in (links[:cut], links[cut:], links):
            now, joined = follow(now, part)
            taken.update(joined)
    assert [offset for offset in range(first, now) if matching[offset] and offset not in taken] == []


@given(MATCHING, st.integers(0, END), st.integers(0, END), st.randoms())
def test_a_replica_that_lost_lines_gives_these_again_and_goes_on(
    matching: list[bool], front: int, count: int, chance
) -> None:
    """Started again, it walks its links from the log's offset, and fills the gaps with new ones."""
    kept = dict(link for link in gave(front, matching, count) if chance.random() < 0.7)
    while True:
        at, _joined = follow(front, sorted(kept.items()))
        more = gave(at, matching, 1)
        if not more:
            break
        kept |= dict(more)
    assert follow(front, sorted(kept.items()))[1] == [offset for offset in range(front, END) if matching[offset]]


@given(MATCHING, st.integers(0, END), st.integers(0, END), st.integers(0, END), st.randoms())
def test_parts_and_repetition_end_alike(matching: list[bool], began: int, count: int, front: int, chance) -> None:
    links = [link for link in gave(began, matching, count) if chance.random() < 0.7]
    at_once = follow(front, links)
    cut = chance.randint(0, len(links))
    now, first = follow(front, links[:cut])
    now, second = follow(now, links[cut:])
    assert (now, [*first, *second]) == at_once
    assert follow(now, links) == (now, [])
