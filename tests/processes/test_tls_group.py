"""A broker group in which everything uses TLS: controllers, brokers, the log between them, and the proxy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.processes.broker_group import BrokerGroup
from tests.processes.failovers import TOPIC, failover
from tests.processes.rig import Client, Stream, expect_all, no_traceback
from tests.processes.test_remoting_tls import dialling, listening
from tests.support.certificates import HAVE_OPENSSL, Authority

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl"),
]


def test_a_master_dies_and_everything_was_encrypted(tmp_path: Path) -> None:
    """Acknowledged means: two brokers have it, so the log went to a replica. Without TLS there is no greeting."""
    authority = Authority(tmp_path / "certificates")
    identity = authority.issue()
    arguments = {
        role: [*(listening(role, identity) if role != "proxy" else []), *dialling(role, authority)]
        for role in ("controller", "broker", "proxy")
    }
    group = BrokerGroup(tmp_path, brokers=3, arguments=arguments)
    try:
        group.start()
        reader = Client(group.proxy, "reader", clean=False)
        reader.subscribe((TOPIC, 1))
        stream = Stream(group.proxy, TOPIC)
        failover(group, stream)
        master = group.settle()
        follows = next(each.status()["follows"] for each in group.brokers if each is not master)
        host, _, port = follows.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as plain:
            assert plain.recv(1) == b""
        expect_all(reader, {TOPIC: stream.end()})
        reader.close()
        group.wait_equal()
        no_traceback(group.proxy, *group.brokers, *group.controllers)
    finally:
        group.end()
