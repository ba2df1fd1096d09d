"""The compiled rows' own dangers: references counted by hand, and doing the work at all."""

from __future__ import annotations

import sys

import pytest

from broker.meta import hot
from broker.meta.hot import Way
from remoting.protocol.append_body import encode_entries, encode_mqtt_entry

pytestmark = pytest.mark.skipif(hot.choice.name != "compiled", reason=f"no compiled twin: {hot.choice.reason}")


def test_nothing_is_lost_or_kept() -> None:
    """After a hundred thousand messages each shared value is referred to as often as before."""
    core, queues, hidden = hot.compiled_core(), (1, 2), (3,)
    way = Way({b"a": queues}, lambda _topic: queues, lambda _topic: (queues,), lambda *_: None, 100, 100)
    body = encode_entries([encode_mqtt_entry(b"a", b"body", 1, 1 << 50, b"client")] * 1_000)
    watched = (queues, hidden, body, way)
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(100):
        assert len(core.placed(body, way) or ()) == 1_000
        assert len(core.staged(body, way, hidden) or ()) == 1_000
        assert core.topics(body) == {b"a"}
    assert [sys.getrefcount(one) for one in watched] == before


def test_what_the_careful_way_raises_comes_through() -> None:
    """A refusal in the middle leaves no turn counted."""
    core = hot.compiled_core()

    def missed(topic: bytes) -> tuple[int, ...]:
        raise PermissionError(topic)

    turned: list[object] = []
    way = Way({}, missed, lambda _topic: ((1,),), lambda *one: turned.append(one), 100, 100)
    with pytest.raises(PermissionError):
        core.placed(encode_entries([encode_mqtt_entry(b"a", b"", 1, 1, b"")]), way)
    assert turned == []
