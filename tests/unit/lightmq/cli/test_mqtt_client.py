from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from lightmq.cli.mqtt_client import MqttLink, MqttTarget
from lightmq.cli.outcome import CommandFailed


def test_a_connection_with_user_and_session(mqtt_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTMQ_PASSWORD", "secret")
    mqtt_server.session_present = 1
    link = MqttLink(MqttTarget(port=mqtt_server.port, user="ann", client_id="c"), persistent=True)
    link.open()
    assert link.session_present
    link.close()
    assert b"ann" in mqtt_server.connects[0]
    assert b"secret" in mqtt_server.connects[0]
    assert mqtt_server.connects[0][7] & 2 == 0  # clean session is off


def test_a_refusal_is_told_in_words(mqtt_server: Any) -> None:
    mqtt_server.connack = 4
    with pytest.raises(CommandFailed, match=r"refused the connection: .*user name or password"):
        MqttLink(MqttTarget(port=mqtt_server.port)).open()


def test_nobody_there_and_bad_options(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandFailed, match="lightmq up"):
        MqttLink(MqttTarget(port=1)).open()
    with pytest.raises(CommandFailed, match="cannot connect to"):
        MqttLink(MqttTarget(host="no-such-host.invalid")).open()
    with pytest.raises(CommandFailed, match="--client-id"):
        MqttLink(MqttTarget(), persistent=True)
    monkeypatch.delenv("LIGHTMQ_PASSWORD", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CommandFailed, match="LIGHTMQ_PASSWORD"):
        MqttLink(MqttTarget(user="ann"))
