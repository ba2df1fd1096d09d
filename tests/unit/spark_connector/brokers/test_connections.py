"""The pool and the retries, against a real socket."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from remoting.client.tls import ClientTls
from remoting.protocol.frames.commands import Command
from remoting.server.access import Access
from remoting.transport.contracts import Peer
from remoting.transport.failures import TlsFailed
from spark_connector.brokers.connections import POOL, ask
from spark_connector.errors import BrokerRefused, BrokerUnreachable
from spark_connector.options.read_write import ReadOptions
from tests.unit.spark_connector.toy_broker import ToyBroker

Options = Callable[..., ReadOptions]


def test_a_connection_is_used_again(broker: ToyBroker) -> None:
    with POOL.borrow(broker.address, 1000) as first:
        pass
    with POOL.borrow(broker.address, 1000) as second:
        assert second is first


def test_a_failed_or_unanswered_connection_is_not(broker: ToyBroker) -> None:
    with pytest.raises(RuntimeError), POOL.borrow(broker.address, 1000) as failed:
        raise RuntimeError
    assert failed.closed
    with POOL.borrow(broker.address, 1000) as hasty:
        hasty.send(Command(12345))
    assert hasty.closed


def test_one_the_server_hung_up_on_is_not_lent_again(broker: ToyBroker, read_options: Options) -> None:
    """As after a restart of the broker: no attempt is lost on it."""
    with POOL.borrow(broker.address, 1000) as former:
        former.request(Command(12345))
    broker.drop_connections()
    deadline = time.monotonic() + 10
    while not former.stale:
        assert time.monotonic() < deadline
    with POOL.borrow(broker.address, 1000) as new:
        assert new is not former
        new.request(Command(12345))
    assert former.closed


def test_a_forked_child_takes_nothing_of_its_parents(broker: ToyBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with POOL.borrow(broker.address, 1000) as parents:
        pass
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    with POOL.borrow(broker.address, 1000) as childs:
        assert childs is not parents


def test_a_lost_connection_is_made_again(broker: ToyBroker, read_options: Options) -> None:
    broker.faults = [lambda command: None, lambda command: None]
    with pytest.raises(BrokerRefused, match="refused"):
        ask(broker.address, Command(12345), read_options(topic="t"))
    assert len(broker.requests) == 3


def test_unreachable_names_the_address(broker: ToyBroker, read_options: Options) -> None:
    broker.close()
    host, port = broker.address
    with pytest.raises(BrokerUnreachable, match=rf"{host}:{port} after 2 attempts.*lightmq up.*nameServer"):
        ask(broker.address, Command(1), read_options(topic="t", fetchretries="1"))


def test_requests_are_signed_and_connections_keep_to_their_key(broker: ToyBroker, read_options: Options) -> None:
    access = Access({"mine": "hidden"})
    stranger = cast("Peer", SimpleNamespace(loopback=False, address="far:1", attributes={}))

    def checked(command: Command) -> Command:
        return access.admit(stranger, command) or command.reply()

    broker.faults = [checked, checked, checked]  # the first gives the challenge that the others are bound to
    signed = read_options(topic="t", accesskey="mine", secretkey="hidden")
    ask(broker.address, Command(1, body=b"x"), signed)
    ask(broker.address, Command(1, fields={"a": "b"}), signed)
    assert broker.faults == []
    with POOL.borrow(broker.address, 1000, signer=signed.signer) as signing, POOL.borrow(broker.address, 1000) as plain:
        assert signing is not plain


def test_connections_keep_to_their_tls_and_a_stranger_is_not_asked_again(
    broker: ToyBroker, read_options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain connection is not lent where TLS is asked for; a certificate that is not trusted ends it at once."""
    tries = []

    def untrusted(host: str, port: int, *_: object, tls: ClientTls | None = None, **__: object) -> None:
        tries.append(tls)
        raise TlsFailed(host, port, "self-signed certificate")

    with POOL.borrow(broker.address, 1000):
        pass
    monkeypatch.setattr("spark_connector.brokers.connections.BlockingConnection", untrusted)
    wanted = read_options(topic="t", tls="true", tlscafile=str(tmp_path / "ca.pem"))
    with pytest.raises(BrokerUnreachable, match=r"self-signed.*tlsCaFile"):
        ask(broker.address, Command(1), wanted)
    assert tries == [ClientTls(ca_file=tmp_path / "ca.pem")]
