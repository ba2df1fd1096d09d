"""The picture at the end: drawn from whatever there is, with units, and a title that says what happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightmq.demo import story as drawing
from lightmq.demo.accounting import Accounting, LedgerRow, Line
from lightmq.demo.moments import Moments
from lightmq.demo.story import Story, draw_story, headline, panels, series, write_page
from tests.support import layout
from tests.support.clock import ManualClock

BEGUN_MS = 1_700_000_000_000
ACCOUNTING = Accounting((Line("readings", {"sent": 40, "stored": 40}), Line("commands", {"decided": 1, "sent": 1})))


def rows(*sensors: str, begun_ms: int = BEGUN_MS) -> list[LedgerRow]:
    """Forty readings, one a second, of the sensors in turn."""
    return [
        LedgerRow(f"d-{index}", sensors[index % len(sensors)], 50.0 + index, 0, index, begun_ms + index * 1000)
        for index in range(40)
    ]


def story(found: list[LedgerRow], *moments: str) -> Story:
    """A run with these readings, a command for the last one, and a moment every ten seconds."""
    clock = ManualClock(BEGUN_MS)
    noted = Moments(clock)
    for name in moments:
        clock.advance_ms(10_000)
        noted.add(name)
    last = found[-1] if found else None
    commands = [] if last is None else [
        {"id": "c", "sensor": last.sensor, "value": last.value, "deviation": 4.0, "time_ms": last.time_ms,
         "sent_ms": last.time_ms, "arrived_ms": last.time_ms + 400}
    ]  # fmt: skip
    return Story(found, commands, ACCOUNTING, noted, "host")


def test_a_picture_and_a_page(tmp_path: Path) -> None:
    """A picture by its signature, a page that carries its own script; of a live run and of a recorded series."""
    live = story(rows("cpu0_percent", "memory_percent"), "Spark starts", "Spark's first rows")
    for name, one in {"live": live, "recorded": story(rows("machine", begun_ms=BEGUN_MS // 2))}.items():
        draw_story(tmp_path / f"{name}.png", one)
        write_page(tmp_path / f"{name}.html", one)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        page = (tmp_path / f"{name}.html").read_text()
        assert ": command" in page
        assert 'src="http' not in page


def test_nothing_to_draw_is_no_failure(tmp_path: Path) -> None:
    """A run that was ended at once still ends with its files."""
    draw_story(tmp_path / "a.png", story([]))
    write_page(tmp_path / "a.html", story([]))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "<html" in (tmp_path / "a.html").read_text()


def test_the_title_says_what_happened() -> None:
    """What starting Spark cost; for a recorded series what was found in it."""
    live = story(rows("cpu0_percent"), "Spark starts", "Spark's first rows")
    title, rest = headline(live, series(live))
    assert title == "Starting Spark took 10 s and 65 % of this machine's CPU; 1 anomaly on the way"
    assert "half within" not in rest
    assert rest.endswith("; all of them are answers to readings from before Spark was up")
    up = story(rows("cpu0_percent"), "all queries up")
    assert headline(up, series(up))[1].endswith(", half within 0.4 s of its reading once it was up")
    recorded = story(rows("machine", begun_ms=BEGUN_MS // 2))
    assert headline(recorded, series(recorded))[0] == "1 anomaly found in 40 readings of 1 sensor"


def test_answers_do_not_stretch_a_recorded_series(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They have the time of this run, years after the readings."""
    reached: list[float] = []
    monkeypatch.setattr(drawing, "finish", lambda _axes, ends, *_, **__: reached.append(max(ends)))
    recorded = rows("machine", begun_ms=BEGUN_MS // 2)
    answer = LedgerRow("d-40", "round_trip_ms", 12.0, 0, 40, BEGUN_MS)
    draw_story(tmp_path / "a.png", story([*recorded, answer]))
    assert max(reached) < 1


def test_every_panel_has_a_unit() -> None:
    """Sensors that belong together share one; those of a recorded series have one each."""
    shown = panels(["cpu0_percent", "cpu1_percent", "memory_percent", "wakeup_late_ms", "load_1min"])
    assert [(panel.title, panel.unit, len(panel.sensors)) for panel in shown] == [
        ("CPU", "% of a core", 2), ("Memory in use", "%", 1), ("How late a thread wakes up", "ms", 1),
    ]  # fmt: skip
    assert [panel.title for panel in panels(["machine", "round_trip_ms"])] == ["machine"]


SENSORS = (
    "cpu0_percent", "cpu1_percent", "cpu2_percent", "cpu3_percent", "cpu4_percent", "cpu5_percent",
    "memory_percent", "disk_write_bytes_per_s", "disk_read_bytes_per_s", "network_received_bytes_per_s",
    "temperature_coretemp_0", "temperature_coretemp_1", "wakeup_late_ms",
)  # fmt: skip
NAMES = ("Spark starts", "Spark's first rows", "all queries up", "first command back")


def a_run(seconds: float, at_s: tuple[float, ...], restarts: int, took_ms: tuple[float, ...]) -> Story:
    """A run of so many seconds with its moments, restarts of queries close together, and commands all along."""
    clock = ManualClock(BEGUN_MS)
    moments = Moments(clock)
    named = [*zip(at_s, NAMES, strict=False)]
    named += [(at_s[1] + 1.5 * number, "query restarted") for number in range(1, restarts + 1)]
    for at, name in sorted(named):
        clock.advance_ms(max(round(at * 1000) - (clock.now_ms() - BEGUN_MS), 0))
        moments.add(name)
    found, commands = [], []
    for number in range(120):
        at_ms = BEGUN_MS + round(seconds * 1000 * number / 120)
        for place, sensor in enumerate(SENSORS):
            scale = 1e6 if "bytes" in sensor else 1.0
            value = scale * (50 + 40 * ((number * (place + 3)) % 17) / 17)
            found.append(LedgerRow(f"d-{len(found)}", sensor, value, 0, len(found), at_ms))
            if number % 30 == 29 - place:
                took = took_ms[len(commands) % len(took_ms)]
                commands.append(
                    {"id": f"c{len(commands)}", "sensor": sensor, "value": value, "deviation": 4.0 + 70 * place,
                     "time_ms": at_ms, "sent_ms": at_ms, "arrived_ms": at_ms + took}
                )  # fmt: skip
    counts = {"acknowledged": 32_544, "stored": 32_544, "written by Spark": 32_544, "distinct": 32_544}
    ledger = Accounting((Line("readings", counts), Line("commands", dict(zip(counts, [1120] * 4, strict=True)))))
    return Story(found, commands, ledger, moments, "a-machine-with-a-rather-long-name-of-its-own")


RUNS = {
    "fast": a_run(45, (2, 14, 15, 16), 0, (80, 120, 3_000)),
    "slow": a_run(700, (176, 345, 520, 530), 6, (50_789, 61_000, 300_000)),
    "short": a_run(9, (1, 7.5, 8, 8.2), 2, (400, 410, 402)),
    "late": a_run(60, (40, 58.2), 1, (60, 60_000)),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_text_can_be_read(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None is cut, and none covers another one, however long a run took and whatever came close together."""
    pages = layout.drawn(monkeypatch)
    draw_story(tmp_path / "a.png", RUNS[name])
    assert pages[0].faults == []


def test_what_happened_often_is_named_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pages = layout.drawn(monkeypatch)
    draw_story(tmp_path / "a.png", RUNS["slow"])
    said = pages[0].texts
    assert [text for text in said if "again" in text] == ["a query started again, 6 times, first 346 s"]
    assert not any(text.startswith("the quickest") for text in said)
    assert any("more than 100 times its usual spread off" in text for text in said)
