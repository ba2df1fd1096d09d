"""Index entries as the reference keeps them."""

from __future__ import annotations

from remoting.native.reference.blocks import lists_of, make_block


def test_lists_of_a_block_and_its_parts() -> None:
    """A part of a block is a block."""
    block = make_block([1, 2, 3], [0, 0, 0], [0, 8, 16], [8, 8, 8], [5, 6, 7], [1, 2, 1])
    assert block.slice(1, 3).columns() == ([2, 3], [0, 0], [8, 16], [8, 8], [6, 7], [2, 1])
    assert (len(block), block.position(2), lists_of(block)[5]) == (3, 16, [1, 2, 1])
