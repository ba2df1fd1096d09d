"""Checks of what people type, with the protocol's own rules, before anything is sent."""

from __future__ import annotations

from lightmq.cli.outcome import CommandFailed
from remoting.protocol.records.topics import validate_filter, validate_topic_name


def check_qos(qos: int) -> None:
    """Raises CommandFailed unless it is 0, 1 or 2."""
    if qos not in (0, 1, 2):
        raise CommandFailed(f"--qos must be 0, 1 or 2, not {qos}")


def check_topic(topic: str) -> None:
    """Raises CommandFailed unless messages can be published to it."""
    complaint = validate_topic_name(topic)
    if complaint:
        raise CommandFailed(f"topic {topic!r} cannot be published to: {complaint}")


def check_filter(topic_filter: str) -> None:
    """Raises CommandFailed unless it is a topic filter."""
    complaint = validate_filter(topic_filter)
    if complaint:
        raise CommandFailed(f"{topic_filter!r} is not a topic filter: {complaint}")
