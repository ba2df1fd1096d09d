"""What RocketMQ's clients read from the id of a stored message."""

from __future__ import annotations

from remoting.protocol.records.stored_message import Host, unpack_host


def parse_offset_message_id(message_id: str) -> tuple[Host, int]:
    """Return (store host, position in the log) of an id of 32 digits (IPv4) or 56 (IPv6)."""
    assert len(message_id) in (32, 56), message_id
    raw = bytes.fromhex(message_id)
    return unpack_host(raw[:-8]), int.from_bytes(raw[-8:], "big")
