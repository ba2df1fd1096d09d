"""Options that change at run time: which, with what effect, for how long, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from broker.broker import BrokerParts
from broker.config import BrokerConfig
from broker.options.feature import CHANGE_BYTES_MAX, LOG_LEVEL, properties
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from runtime import logs
from runtime.config import live_keys
from runtime.logs import get_logger
from runtime.metrics import Registry
from tests.unit.broker.light_queues.sessions import feature as light_queues


async def change(running, *lines: str) -> Command:
    command = Command(RequestCode.UPDATE_BROKER_CONFIG, body="\n".join(lines).encode())
    return await running.connect().request(command)


async def shown(running) -> dict[str, str]:
    reply = await running.connect().request(Command(RequestCode.GET_BROKER_CONFIG))
    assert reply.code == ResponseCode.SUCCESS
    return dict(line.split("=", 1) for line in bytes(reply.body).decode().splitlines())


def transactions(running) -> object:
    return running.broker.transactions.messages


IN_FORCE: dict[str, tuple[str, Callable[[object], object]]] = {
    "limits.topics_max": ("7", lambda r: r.broker.topics.table.topics_max),
    "limits.delayed_messages_max": ("7", lambda r: r.broker.delayed.messages._limits.messages_max),
    "limits.delayed_per_second_max": ("7", lambda r: r.broker.delayed.messages.seconds.per_second_max),
    "limits.transactions_max": ("7", lambda r: transactions(r)._pending_max),
    "limits.pop_in_flight_max": ("7", lambda r: r.broker.tools.config.limits.pop_in_flight_max),
    "limits.access_users_max": ("7", lambda r: r.broker.tools.config.limits.access_users_max),
    "default_queue_count": ("7", lambda r: len(created(r, "by_use"))),
    "template_queue_count": ("7", lambda r: r.broker.registration._template().write_queue_count),
    "auto_create_topics": ("false", lambda r: creates(r)),
    "delay_s_max": ("7", lambda r: r.broker.delayed.messages._limits.delay_ms_max // 1_000),
    "transaction_check_after_ms": ("107", lambda r: transactions(r).halves.check_after_ms),
    "transaction_check_interval_ms": ("107", lambda r: r.broker.tools.config.transaction_check_interval_ms),
    "transaction_checks_max": ("7", lambda r: r.broker.tools.config.transaction_checks_max),
    "transaction_age_s_max": ("7", lambda r: r.broker.tools.config.transaction_age_s_max),
    "limits.topics_per_user_max": ("7", lambda r: r.broker.topics.table.per_user_max),
    "limits.sinks_max": ("7", lambda r: r.broker.sink.ledger.sinks_max),
    "limits.mqtt_topics_per_parent_max": ("7", lambda r: light_queues(r).quota.per_parent_max),
    "limits.mqtt_topics_per_user_max": ("7", lambda r: light_queues(r).quota.per_user_max),
    "unused_queue_expiry_s": ("7", lambda r: light_queues(r).unused.expiry_ms // 1_000),
    "unused_offset_expiry_s": ("7", lambda r: light_queues(r).unused.offset_expiry_ms // 1_000),
    "client_expiry_s": ("7", lambda r: r.broker.groups.clients.expiry_ms // 1_000),
    "shared_commit_interval_ms": ("7", lambda r: r.broker.tools.config.shared_commit_interval_ms),
    "shared_wait_ms": ("7", lambda r: r.broker.tools.config.shared_wait_ms),
    "store.retention_ms": ("7", lambda r: r.store.retention.expiry.age_ms),
    "store.retention_size_bytes": ("700000000", lambda r: r.store.retention._settings.retention_size_bytes),
    "store.expire_when_full": ("true", lambda r: str(r.store.retention._settings.expire_when_full).lower()),
}
"""Key -> a value, and how the part that uses it shows the one in force."""


def created(running, name: str) -> tuple[int, ...]:
    running.broker.publishing.placement.choice.topic_for_write(name)
    return running.broker.topics.table.queue_ids(name)


def creates(running) -> str:
    try:
        created(running, "by_use")
    except Refused:
        return "false"
    return "true"


def test_every_live_option_is_tried() -> None:
    assert set(IN_FORCE) == live_keys(BrokerConfig)


@pytest.mark.parametrize("key", IN_FORCE)
async def test_a_change_is_in_force_at_once_and_after_a_restart(running, key) -> None:
    text, used = IN_FORCE[key]
    configured = (await shown(running))[key]
    assert configured.lower() != text
    reply = await change(running, f"{key}={text}")
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert set(json.loads(reply.fields["version"])) == {"stateVersion", "timestamp", "counter"}
    assert str(used(running)) == text
    assert (await shown(running))[key].lower() == text
    await running.restart()
    if key != "default_queue_count":
        assert str(used(running)) == text
    assert (await shown(running))[key].lower() == text
    assert (await change(running, f"{key}=")).code == ResponseCode.SUCCESS
    assert (await shown(running))[key] == configured
    await running.restart()
    assert (await shown(running))[key] == configured


async def test_the_level_of_the_logs_changes(running) -> None:
    before = logs.in_use()[0]
    try:
        assert (await change(running, f"{LOG_LEVEL}=debug")).code == ResponseCode.SUCCESS
        assert logs.in_use()[0] == (await shown(running))[LOG_LEVEL] == "debug"
        assert (await change(running, f"{LOG_LEVEL}=loud")).code == ResponseCode.INVALID_PARAMETER
        assert (await change(running, f"{LOG_LEVEL}=")).code == ResponseCode.SUCCESS
        assert (await shown(running))[LOG_LEVEL] == before
    finally:
        logs.set_level(before)


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("port=1", ResponseCode.NO_PERMISSION, "read at the start"),
        ("limits.message_size_bytes_max=", ResponseCode.NO_PERMISSION, "limits.topics_max"),
        ("limits.topic_max=7", ResponseCode.INVALID_PARAMETER, "did you mean limits.topics_max?"),
        ("fileReservedTime=7", ResponseCode.INVALID_PARAMETER, "unknown"),
        ("limits.topics_max=0", ResponseCode.INVALID_PARAMETER, "at least 1"),
        ("limits.topics_max=many", ResponseCode.INVALID_PARAMETER, "a whole number"),
        ("store.retention_ms=-1", ResponseCode.INVALID_PARAMETER, "retention_ms"),
        ("limits.topics_max", ResponseCode.INVALID_PARAMETER, "key=value"),
        ("# nothing", ResponseCode.INVALID_PARAMETER, "no line"),
        ("", ResponseCode.INVALID_PARAMETER, "no line"),
    ],
)
async def test_what_cannot_change_is_refused_with_the_reason(running, line, code, reason) -> None:
    before = await shown(running)
    reply = await change(running, "limits.topics_max=9", line) if "=" in line else await change(running, line)
    assert reply.code == code, reply.remark
    assert reason in reply.remark
    assert await shown(running) == before


async def test_secrets_are_not_shown(running) -> None:
    assert "access_keys" not in await shown(running)
    assert (await shown(running))["broker_name"] == "broker-a"


def test_bodies_that_are_no_properties() -> None:
    assert properties(b"\n! no\n a = b=c \r\n") == {"a": "b=c"}
    for wrong in (b"\xff=1", b"a=" + b"x" * CHANGE_BYTES_MAX):
        with pytest.raises(Refused):
            properties(wrong)


async def test_a_change_that_no_longer_fits_is_left_out(running) -> None:
    assert (await change(running, "limits.topics_max=7")).code == ResponseCode.SUCCESS
    running.broker.tools.store.append_state([kept("limits.no_longer", "1"), kept("port", "1")])
    await running.restart()
    found = await shown(running)
    assert (found["limits.topics_max"], found["port"]) == ("7", "10911")


def kept(key: str, text: str) -> StateChange:
    return StateChange(state_kinds.OPTION, key.encode(), text.encode())


async def test_the_parts_of_a_new_master_have_the_changes_in_its_log(running) -> None:
    """A role begins with the configuration of the start and the log that it has."""
    for line, topics_max in (("limits.topics_max=7", 7), ("limits.topics_max=", running.config.limits.topics_max)):
        assert (await change(running, line)).code == ResponseCode.SUCCESS
        parts = BrokerParts(running.config, running.store, running.clock, Registry(), get_logger("test"))
        assert parts.topics.table.topics_max == topics_max
    assert running.config.limits.topics_max == BrokerConfig().limits.topics_max
