"""Limits that make no sense are refused by name."""

from __future__ import annotations

import pytest

from mqtt_proxy.mqtt.codec.limits import SessionLimits


@pytest.mark.parametrize(
    "wrong",
    [
        {"packet_size_bytes_max": 0},
        {"packet_size_bytes_max": 268_435_461},
        {"in_flight_max": 0},
        {"in_flight_max": 65_535},
        {"topic_bytes_max": 70_000},
        {"topic_levels_max": 129},
        {"unauthenticated_bytes_max": 10},
        {"connect_deadline_ms": 0},
        {"client_id_bytes_max": 22},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    """The error names the limit."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SessionLimits(**wrong)
