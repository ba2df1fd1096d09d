"""The twin of the socket carries images and news without frames, in the order of everything else, and ends with it."""

from __future__ import annotations

import asyncio

import pytest

from remoting import inprocess
from remoting.protocol.frames.commands import Command
from remoting.transport.direct import NEWS_ATTRIBUTE
from remoting.transport.failures import ConnectionLost


class Port:
    """A broker that notes what it is given."""

    def __init__(self, seen: list) -> None:
        self.open = True
        self.seen = seen

    def append(self, images, stored) -> None:
        self.seen.append(("append", images))


def connected(seen: list) -> tuple:
    port = Port(seen)
    connection = inprocess.connect(lambda peer, command: seen.append(("frame", command.body)), port=port)
    return port, connection


async def test_publishes_go_over_at_once_when_nothing_is_under_way() -> None:
    seen: list = []
    port, connection = connected(seen)
    assert connection.takes_objects
    connection.append(b"images", print)
    assert seen == [("append", b"images")]
    await connection.close()
    port.open = False
    assert not inprocess.connect(print, port=port).takes_objects


async def test_publishes_wait_behind_requests_made_before() -> None:
    seen: list = []
    _port, connection = connected(seen)
    connection.oneway(Command(1, body=b"subscribe"))
    connection.append(b"one", print)
    connection.oneway(Command(1, body=b"close"))
    connection.append(b"two", print)
    assert not seen
    await asyncio.sleep(0)
    assert seen == [("frame", b"subscribe"), ("append", b"one"), ("frame", b"close"), ("append", b"two")]
    await connection.close()
    with pytest.raises(ConnectionLost):
        connection.append(b"three", print)


async def test_news_come_behind_replies_and_not_after_the_end() -> None:
    heard: list = []
    connection = inprocess.connect(lambda peer, command: None)
    assert not connection.takes_objects
    connection.on_push(lambda command: heard.append(command.body))
    connection.on_news(lambda moved, blobs: heard.append((moved, blobs)))
    news = connection.peer.attributes[NEWS_ATTRIBUTE]
    news([(1, 2)], [])
    assert heard == [([(1, 2)], [])]
    heard.clear()
    connection.peer.send(Command(5, body=b"push"))
    news([(1, 3)], [b"r"])
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [b"push", ([(1, 3)], [b"r"])]
    await connection.close()
    heard.clear()
    news([(1, 4)], [])
    assert not heard


async def test_what_is_called_while_frames_are_delivered_waits_for_them() -> None:
    seen: list = []
    port = Port(seen)

    def handler(peer, command) -> None:
        seen.append(command.body)
        if command.body == b"first":
            connection.append(b"inner", print)

    connection = inprocess.connect(handler, port=port)
    connection.oneway(Command(1, body=b"first"))
    connection.oneway(Command(1, body=b"second"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [b"first", b"second", ("append", b"inner")]
    await connection.close()
