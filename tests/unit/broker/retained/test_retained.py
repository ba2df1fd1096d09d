"""The last retained message of each topic is found by filter, now and after a restart."""

from __future__ import annotations

from broker.retained.retained import Retained
from broker.store.placed import Placed
from remoting.protocol.records.record import FLAG_RETAIN


def publish(bench, make_entries, topic: bytes, body: bytes = b"v") -> int:
    (image,) = make_entries(topic, body=body, flags=FLAG_RETAIN | 1)
    return bench.store.append(Placed(bytes(image.raw), [(bench.store.queues.open(b"q"),)])).first_position


def test_the_newest_of_each_matching_topic_oldest_first(bench, make_entries) -> None:
    retained = Retained(bench.store)
    publish(bench, make_entries, b"plant/1/t")
    second = publish(bench, make_entries, b"plant/2/t")
    newest = publish(bench, make_entries, b"plant/1/t")
    publish(bench, make_entries, b"other/1/t")
    assert retained.positions(b"plant/+/t") == [second, newest]
    assert retained.positions(b"plant/1/t") == [newest]
    assert retained.positions(b"nothing/#") == []


def test_an_empty_payload_clears_and_a_restart_changes_nothing(bench, make_entries) -> None:
    retained = Retained(bench.store)
    kept = publish(bench, make_entries, b"a/b")
    publish(bench, make_entries, b"a/c")
    publish(bench, make_entries, b"a/c", body=b"")
    assert retained.positions(b"a/#") == [kept]
    assert Retained(bench.reopen()).positions(b"#") == [kept]
