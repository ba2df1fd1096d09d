"""The player of foreign vectors sees what is alike, what is not, and what does not come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.mqtt3.targets import CoreTarget
from tests.conformance.vectors import encoded, load, play

FILE = [
    {
        "group": "MQTT 5",
        "ver": 5,
        "tests": [
            {"name": "alike", "msgs": [{"type": "send", "payload": "c1 00"}, {"type": "recv", "payload": "E0 r1 81"}]},
            {"name": "a code", "msgs": [{"type": "send", "payload": "c1 00"}, {"type": "recv", "payload": "E0 r1 82"}]},
            {"name": "a packet before the end", "msgs": [{"type": "send", "payload": "c1 00"}]},
            {"name": "no end", "msgs": [{"type": "send", "payload": "30 r4 s1 'a' v0"}]},
            {"name": "goes on", "expect_disconnect": False, "msgs": [{"type": "send", "payload": "30 r4 s1 'a' v0"}]},
            {"name": "first", "connect": False, "msgs": [{"type": "send", "payload": "c0 00"}]},
        ],
    },
    {"group": "left out", "disable": True, "tests": [{"name": "none", "msgs": []}]},
    {
        "group": "MQTT 3.1.1",
        "tests": [
            {
                "name": "another publisher",
                "expect_disconnect": False,
                "msgs": [
                    {"type": "send", "payload": "82 r6 m1 s1 'a' i0"},
                    {"type": "recv", "payload": "90 r3 m1 i0"},
                    {"type": "publish", "topic": "a", "payload": "x", "qos": 2},
                    {"type": "recv", "payload": "30 r4 s1 'a' 'x'"},
                ],
            }
        ],
    },
]
WRONG = {"a code": "instead of e0 01 82", "a packet before the end": "instead of the end", "no end": "nothing"}


def test_vectors_are_played(tmp_path: Path) -> None:
    """Reason strings are not compared; a group has the defaults of its tests."""
    (tmp_path / "SOME.json").write_text(json.dumps(FILE))
    vectors = load(tmp_path)
    assert len(vectors) == 7
    for vector in vectors:
        wrong = play(CoreTarget(), vector)
        expected = next((text for name, text in WRONG.items() if vector.name.endswith(f" {name}")), "")
        assert bool(wrong) == bool(expected), (vector.name, wrong)
        assert expected in wrong, (vector.name, wrong)


@pytest.mark.parametrize(
    ("payload", "data"),
    [
        ("10 r268435456", b"\x10\x80\x80\x80\x80\x01"),
        ("L1 H2 k10 'two words' FF7F", b"\0\0\0\1\0\2\0\x0atwo words\xff\x7f"),
        ("32 13 0005", b"\x32\x13\0\5"),
    ],
)
def test_payloads(payload: str, data: bytes) -> None:
    """Signs, text and hexadecimal."""
    assert encoded(payload) == data
