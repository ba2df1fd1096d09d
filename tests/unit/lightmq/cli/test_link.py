from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightmq.cli.link import ServerTarget, brokers
from lightmq.cli.outcome import CommandFailed
from remoting.protocol.commands import Command
from remoting.protocol.errors import LightMQError, Refused


def test_brokers_are_found_and_closed(log_server: Any) -> None:
    with brokers(ServerTarget(server=log_server.address)) as found:
        assert [(broker.name, broker.address) for broker in found] == [("broker-a", log_server.address)]
        with pytest.raises(Refused, match="not supported"):
            found[0].ask(Command(777))
    assert found[0].connection.closed


def test_what_can_be_wrong(log_server: Any) -> None:
    log_server.with_broker = False
    with pytest.raises(CommandFailed, match="knows no broker"), brokers(ServerTarget(server=log_server.address)):
        pass
    with pytest.raises(CommandFailed, match="host:port"), brokers(ServerTarget(server="nonsense")):
        pass
    with pytest.raises(LightMQError, match="lightmq up"), brokers(ServerTarget(server="127.0.0.1:1")):
        pass


def test_a_key_that_may_not_be_used_is_said_before_anything_is_asked(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("ops:secret")
    key.chmod(0o644)
    target = ServerTarget(server="127.0.0.1:1", access_key_file=key)
    with pytest.raises(LightMQError, match="chmod 600"), brokers(target):
        pass
