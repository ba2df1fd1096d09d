from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from lightmq.cli import connections
from lightmq.cli.connections import Security, ServerTarget, brokers
from lightmq.cli.outcome import CommandFailed
from remoting.protocol.bodies.controller_body import BrokerData, ClusterInfo
from remoting.protocol.bodies.pull_body import QueueBoundsRequest, decode_bounds_reply, encode_bounds_request
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost


def test_brokers_are_found_and_closed(log_server: Any) -> None:
    with brokers(ServerTarget(server=log_server.address)) as found:
        assert [(broker.name, broker.address) for broker in found] == [("broker-a", log_server.address)]
        with pytest.raises(Refused, match="not supported"):
            found[0].ask(Command(777))
    assert found[0].connection.closed


def test_a_group_without_a_master_is_named(
    log_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is listed is not all there is."""
    read = connections.cluster

    def told(*given: Any, **more: Any) -> ClusterInfo:
        info = read(*given, **more)
        info.broker_addr_table["broker-b"] = BrokerData("c", "broker-b", {})
        return info

    monkeypatch.setattr(connections, "cluster", told)
    with brokers(ServerTarget(server=log_server.address)) as found:
        assert [broker.name for broker in found] == ["broker-a"]
    assert "broker-b: no master can be asked, what only these groups hold is missing" in capsys.readouterr().err


def test_what_can_go_wrong(log_server: Any) -> None:
    log_server.with_broker = False
    with pytest.raises(CommandFailed, match="knows no broker"), brokers(ServerTarget(server=log_server.address)):
        pass
    with pytest.raises(CommandFailed, match="host:port"), brokers(ServerTarget(server="nonsense")):
        pass
    with pytest.raises(LightMQError, match="lightmq up"), brokers(ServerTarget(server="127.0.0.1:1")):
        pass


def test_a_port_that_hangs_up_is_probably_another_one() -> None:
    """An MQTT port, for example: it accepts the connection and ends it at the first frame."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            peer, _ = listener.accept()
            peer.recv(1)
            peer.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        target = ServerTarget(server=f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(CommandFailed, match=r"is it the remoting port of `lightmq up`"), brokers(target):
            pass
        thread.join()


def test_an_unusable_key_is_reported_before_any_request(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("ops:secret")
    key.chmod(0o644)
    target = ServerTarget(server="127.0.0.1:1", security=Security(access_key_file=key))
    with pytest.raises(LightMQError, match="chmod 600"), brokers(target):
        pass


def test_what_may_be_repeated_continues_at_the_next_master(log_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a lost connection and after NOT_MASTER, until none was found for too long."""
    monkeypatch.setattr(connections, "PAUSE_MS", 1)
    monkeypatch.setattr(connections, "PATIENCE_MS", 200)
    refusals = [Refused(ResponseCode.NOT_MASTER, "not me")] * 2
    for_good: list[Refused] = []

    def refuse() -> None:
        if for_good:
            raise for_good[0]
        if refusals:
            raise refusals.pop()

    log_server.on_bounds = refuse
    body = encode_bounds_request(QueueBoundsRequest(topics=["plant"], known={}, wait_ms=1))
    with brokers(ServerTarget(server=f"127.0.0.1:1,{log_server.address}")) as found:
        (broker,) = found
        broker.connection.close()
        assert decode_bounds_reply(broker.ask_again(RequestCode.QUEUE_BOUNDS, body).body).broker == "broker-a"
        assert refusals == []
        with pytest.raises(Refused, match="not supported"):
            broker.ask_again(777, b"")
        log_server.with_broker = False
        for_good.append(Refused(ResponseCode.NOT_MASTER, "not me"))
        with pytest.raises(ConnectionLost):
            broker.ask_again(RequestCode.QUEUE_BOUNDS, body)
