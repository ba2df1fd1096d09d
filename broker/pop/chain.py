"""How far a group's offset may be moved over messages that a replica gave while it stood in for the master.

What lies below a group's offset and is not in flight counts as done, so an offset must not be moved over a message that
nobody was given. Each message that a replica gives is a link: its offset, and where the replica began to look for it.
Everything between was looked at and did not match. A link begins behind the one before it, or at the group's
offset in the replica's log, and never at the beginning of its pop: links of one pop can be lost one by one.

Invariant: whatever links are missing, repeated or come in parts, and wherever the log's own offset is, no
message that matched is passed over that is not a link which was taken. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable

Link = tuple[int, int]
"""(offset, start): the offset of a message, and where looking for it began."""


def follow(front: int, links: Iterable[Link]) -> tuple[int, list[int]]:
    """The front behind all links, by ascending offsets, that join on to `front`; and the offsets of these."""
    taken = []
    for offset, start in links:
        if start <= front <= offset:
            taken.append(offset)
            front = offset + 1
    return front, taken
