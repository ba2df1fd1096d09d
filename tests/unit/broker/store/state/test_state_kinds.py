"""The numbers of state kinds are on disks: they never change."""

from __future__ import annotations

from broker.store.state import state_kinds


def test_numbers_are_fixed() -> None:
    """One line per kind that any released store may hold."""
    assert state_kinds.NAMES == {
        1: "queue",
        2: "topic",
        3: "group_offset",
        4: "session",
        5: "session_offset",
        6: "retained",
        7: "filter",
        8: "ledger",
        9: "group",
        10: "will",
        11: "retention",
        12: "session_inflight",
        13: "session_received",
        14: "log_begin",
        20: "shared",
        21: "delayed",
        22: "transaction",
    }
