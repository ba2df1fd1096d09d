"""Filters made to be expensive: matching visits each level at most once, also for near matches."""

from __future__ import annotations

import itertools
import time

from remoting.protocol.records.topics import FilterTrie

DEPTH = 12
CPU_S_MAX = 2.0
"""For all of it; a backtracking matcher would need hours, this one some hundredths of a second."""


def test_filters_that_nearly_match() -> None:
    """Every mixture of `a` and `+` before a different end, and one that matches among them."""
    trie: FilterTrie[int] = FilterTrie()
    for number, levels in enumerate(itertools.product(("a", "+"), repeat=DEPTH)):
        trie.add("/".join((*levels, "b")), number)
        trie.add("/".join((*levels, "a", "b")), number)
    trie.add("/".join(["+"] * DEPTH + ["#"]), -1)
    topic = "/".join(["a"] * (DEPTH + 1))
    began = time.process_time()
    for _ in range(10):
        assert trie.match(topic) == [-1]
    assert time.process_time() - began < CPU_S_MAX
