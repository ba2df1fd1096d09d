"""What several brokers showed is merged, and what was cleaned away is put back for the judges."""

from __future__ import annotations

import zlib

from tests.chaos.readers import Final, Sight


def seen(*bodies: bytes, keeps_bodies: bool = False) -> Sight:
    """A queue whose messages from offset 3 on were shown by one broker."""
    sight = Sight(keeps_bodies=keeps_bodies)
    for offset, body in enumerate(bodies, 3):
        sight.see("b1", "t/7", offset, body)
    return sight


def test_brokers_may_show_the_same_twice() -> None:
    """The second one continues where the first one stopped."""
    sight = seen(b"x", b"y")
    sight.see("b2", "t/7", 4, b"y")
    sight.see("b2", "t/7", 5, b"z")
    assert sight.problems == []
    assert sight.ends("t") == {7: 6}
    assert sight.ends("other") == {}
    assert sight.seen["t/7"].table() == {3: zlib.crc32(b"x"), 4: zlib.crc32(b"y"), 5: zlib.crc32(b"z")}


def test_another_message_at_the_same_offset_is_a_problem() -> None:
    """As a replaced master would show it beside the new one; so is an offset that was not shown."""
    sight = seen(b"x", b"y")
    sight.see("b2", "t/7", 4, b"other")
    sight.see("b2", "t/7", 9, b"y")
    assert sight.problems == ["t/7 offset 4 changed while it was read, at b2", "t/7 went from 5 to 9 at b2"]


def test_cleaned_messages_are_put_back() -> None:
    """Only below the beginning of the log: above it the log itself is judged."""
    final = Final({("t", 7): {5: b"z"}}, {("t", 0): 7, ("t", 1): 8})
    final.complete(seen(b"x", b"y", b"changed", keeps_bodies=True).seen)
    assert final.bodies == {("t", 7): {3: b"x", 4: b"y", 5: b"z"}}
    assert final.all("t") == [b"z", b"x", b"y"]
    assert final.by_queue() == {"t/7": [b"x", b"y", b"z"]}
    assert final.placed() == {("t", 0): {3: b"x", 4: b"y", 5: b"z"}, ("t", 1): {}}


def test_a_complete_log_stays_as_it_was_read() -> None:
    """What is missing in it is not filled in from what was seen."""
    final = Final({("t", 7): {4: b"y"}})
    final.complete(seen(b"x", b"y").seen)
    assert final.bodies == {("t", 7): {4: b"y"}}
