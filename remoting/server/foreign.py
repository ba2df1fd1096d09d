"""What a connection speaks that speaks another protocol than this port's, told by its first bytes.

Invariant: no frame is taken for something else: each pattern would be the length of a frame above 268 MB.
Pure.
"""

from __future__ import annotations

HTTP2_PREFACE = b"PRI * HTTP/2"
HTTP_VERBS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
MQTT_CONNECT = 0x10
MQTT_NAMES = (b"\x00\x04MQTT", b"\x00\x06MQIsdp")
LENGTH_BYTES_MAX = 4
FIRST_BYTES = 16
"""So many bytes of a connection are looked at."""


def foreign(first: bytes) -> str:
    """What these first bytes of a connection are, and where they belong; empty for what may be a frame."""
    if first.startswith(HTTP2_PREFACE[:4]):
        return "it speaks HTTP/2, as gRPC clients do: gRPC is not offered, use a client of the remoting protocol"
    if first.startswith(HTTP_VERBS):
        return "it speaks HTTP: metrics and health are at the administration port (admin_port)"
    if first[:1] == bytes((MQTT_CONNECT,)) and any(
        first[1 + size :].startswith(MQTT_NAMES) for size in range(1, LENGTH_BYTES_MAX + 1)
    ):
        return "it speaks MQTT: that belongs to the MQTT port of a proxy or of `lightmq up`"
    return ""
