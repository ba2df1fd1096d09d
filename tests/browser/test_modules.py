"""The console's pure modules: figures as people read them, readings in messages, the past of a group of brokers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.browser.visitor import Visitor

pytestmark = pytest.mark.processes

FORMATS: list[tuple[str, str, Any]] = [
    ("span", "[999]", "999 ms"),
    ("span", "[1500]", "1.5 s"),
    ("span", "[60000]", "1 min"),
    ("span", "[3723000]", "1 h 2 min"),
    ("span", "[90000000]", "1 d 1 h"),
    ("span", "[undefined]", "\N{EN DASH}"),
    ("ago", "[1000, 62000]", "1 min ago"),
    ("ago", "[1000, 1900]", "now"),
    ("ago", "[9000, 1000]", "in 8 s"),
    ("ago", "[0]", "\N{EN DASH}"),
    ("bytes", "[999]", "999 B"),
    ("bytes", "[1234567]", "1.23 MB"),
    ("short", "[9999]", "9,999"),
    ("short", "[12345]", "12.3 k"),
    ("short", "[-2500000]", "-2.5 M"),
    ("short", "[NaN]", "\N{EN DASH}"),
    ("digits", "[0.00123]", "0.0012"),
    ("cause", r"['java.Error: x\nTraceback (most recent call last):\n  File\nValueError: no']", "ValueError: no"),
    ("cause", r"['The query was stopped.\nWhy: nobody knows']", "The query was stopped."),
    ("plural", "[1, 'message']", "1 message"),
    ("plural", "[2, 'property', 'properties']", "2 properties"),
]
READINGS: list[tuple[Any, list[list[Any]], str]] = [
    (21.5, [["value", 21.5]], ""),
    ({"value": 3, "unit": "kPa", "seq": 9, "sent_ms": 5}, [["value", 3]], "kPa"),
    ({"outer": {"inner": {"deep": {"deeper": 1}, "x": 2}}, "list": [1]}, [["outer.inner.x", 2]], ""),
    ({"text": "1", "flag": True, "nothing": None}, [], ""),
    ({f"field{number}": number for number in range(20)}, [[f"field{number}", number] for number in range(8)], ""),
    ("words", [], ""),
]

UNITS = {
    "temperature": "\N{DEGREE SIGN}C", "disk_read_bytes_per_s": "B/s", "vibration_mm_s": "mm/s", "delay_ms": "ms",
    "memory_percent": "%", "speed": "",
}  # fmt: skip


def test_pure_modules(visitor: Visitor) -> None:
    """In one page, because a page costs more than all of them."""

    def run(module: str, script: str) -> Any:
        return visitor.page.evaluate(f"import('/console/static/app/{module}.js').then((it) => {script})")

    for name, arguments, expected in FORMATS:
        assert run("core/format", f"it.{name}(...{arguments})") == expected, (name, arguments)
    for payload, numbers, unit in READINGS:
        text = json.dumps(json.dumps(payload))
        assert run("core/readings", f"it.numbersIn({text})") == {"numbers": numbers, "unit": unit}, payload
    assert run("core/readings", "it.numbersIn('{broken')") == {"numbers": [], "unit": ""}
    timed = json.dumps(json.dumps({"value": 3, "time_ms": 7}))
    assert run("core/readings", f"it.numbersIn({timed})") == {"numbers": [["value", 3]], "unit": "", "at_ms": 7}
    for name, unit in UNITS.items():
        assert run("core/readings", f"it.unitOf('{name}')") == unit, name
    changes = [
        {"time_ms": 0, "master": "1", "sync_state_set": ["1", "2"], "master_epoch": 1},
        {"time_ms": 50, "master": "1", "sync_state_set": ["1"], "master_epoch": 1},
        {"time_ms": 70, "master": "2", "sync_state_set": ["2"], "master_epoch": 2},
    ]
    drawn = run("parts/history", f"it.stretches({json.dumps(changes)}, '1', 10, 100)")
    assert drawn == [{"from": 10, "to": 70, "state": "master", "epoch": 1}]
    drawn = run("parts/history", f"it.stretches({json.dumps(changes)}, '2', 10, 100)")
    assert [(one["from"], one["to"], one["state"]) for one in drawn] == [(10, 50, "in-sync"), (70, 100, "master")]
    route = run("core/router", "it.parse('#/clients/a%2Fb?search=x%20y')")
    assert route == {"view": "clients", "rest": "a/b", "params": {"search": "x y"}}
    assert run("core/router", "it.link('live', { filter: 'a/#', none: '' })") == "#/live?filter=a%2F%23"


WINDOW = {
    "sensor": "heat", "start": "2026-01-01T00:00:00Z", "end_ms": 1767225605000, "avg": 2, "min": 1, "max": 3,
    "count": 9,
}  # fmt: skip
EVENT = {"id": "c1", "sensor": "heat", "value": 9, "deviation": 4.5, "sent_ms": 900, "time_ms": 800}
MESSAGES = [
    ("r/a/windows/heat", WINDOW, 5),
    ("m/a/commands", EVENT, 1000),
    ("m/a/round_trip_ms", {"value": 1, "command": "c1"}, 1300),
    ("m/a/round_trip_ms", {"value": 1, "command": "c1"}, 1400),
    ("m/a/heat", {"value": 3}, 9),
    ("m/a/done", {"command": "c2"}, 2000),
    ("m/b/commands", {"id": "c2", "text": "stop"}, 1990),
]
TAKEN = """
const results = new it.Results();
const taken = MESSAGES.map(([topic, of, time_ms], key) =>
  results.take({ topic, payload: JSON.stringify(of), encoding: "text", time_ms, key }));
const [later, event] = results.events;
return [taken, results.windows.get("r/a/windows/heat").last, results.total, results.trips,
  [event.sensor, event.value, event.answered_ms], [later.text, later.answered_ms],
  it.nearest(["m/a/heat", "m/b/heat", "m/a/cold"], "heat", "r/a/windows/heat"),
  it.nearest(["x/heat", "y/heat"], "heat", "r/windows/heat"), it.median([3, 1, 2])];
"""


def test_results_are_told_from_readings(visitor: Visitor) -> None:
    """Windows, events and answers by their shape, an answer before its event too; what a result is about."""
    body = TAKEN.replace("MESSAGES", json.dumps(MESSAGES))
    found = visitor.page.evaluate(f"import('/console/static/app/core/results.js').then((it) => {{{body}}})")
    taken, window, total, trips, event, later, about, nobody, middle = found
    assert taken == [True, True, False, False, False, False, True]
    assert window == {
        "from_ms": 1767225600000, "to_ms": 1767225605000, "mean": 2, "low": 1, "high": 3, "count": 9,
    }  # fmt: skip
    assert total == {"windows": 1, "events": 2, "answers": 2}
    assert trips == [400, 10]
    assert event == ["heat", 9, 1300]
    assert later == ["stop", 2000]
    assert (about, nobody, middle) == ("m/a/heat", "", 2)


@pytest.mark.slow
def test_a_message_cannot_become_markup(visitor: Visitor) -> None:
    """What devices send is shown as text, whatever it is."""
    visitor.go("#/topics?topic=evil&tab=publish", "Topics")
    visitor.fill("Message", "<img src=x onerror=alert(1)><b id=evil>bold</b>")
    visitor.press("Publish")
    visitor.sees("Acknowledged at offset")
    visitor.go("#/topics?topic=evil", "Topics")
    visitor.page.get_by_role("list", name="Messages, newest first").get_by_text("<img src=x").wait_for()
    assert visitor.page.locator("#evil").count() == 0
