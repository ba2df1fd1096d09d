"""Pictures of the stories from made-up results, without Spark or a server: every text of them can be read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.interop.test_example_kit import load
from tests.support import layout

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pytest.importorskip("pyspark")
BEGUN_MS = 1_768_435_200_000
LENGTHS = {"fast": 25.0, "slow": 600.0, "short": 8.0}


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Save a page; return what of it cannot be read."""
    pages = layout.drawn(monkeypatch)

    def save(page: Any) -> list[str]:
        page.save(
            tmp_path / "a.png", "LightMQ \u00b7 9,920 messages over MQTT, one log, Spark \u00b7 5 of 5 claims hold"
        )
        return pages[-1].faults

    return save


@pytest.mark.parametrize("seconds", LENGTHS.values(), ids=LENGTHS)
def test_laptop(seconds: float, saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Spark was ready only at the end."""
    laptop = load("laptop")
    sensors = ["cpu0_percent", "cpu1_percent", "memory_percent", "disk_write_bytes_per_s", "disk_read_bytes_per_s",
               "network_received_bytes_per_s", "wakeup_late_ms"]  # fmt: skip
    rows = [
        (pd.Timestamp(BEGUN_MS + round(at * 1000), unit="ms", tz="UTC"), sensor, 50.0 + at % 7, 0.0, 100.0)
        for at in np.linspace(0, seconds, 60)
        for sensor in sensors
    ]
    table = pd.DataFrame(rows, columns=["at", "sensor", "mean", "low", "high"])
    monkeypatch.setattr(laptop, "read_rows", lambda *_: table.copy())
    for share in (0.1, 0.97):
        ready_ms = BEGUN_MS + round(seconds * 1000 * share)
        devices = SimpleNamespace(begun_ms=BEGUN_MS, ready_ms=ready_ms, acknowledged=3_808)
        page = laptop.picture(SimpleNamespace(devices=devices, stage=None), [])
        assert "nan" not in page.figure.texts[0].get_text()
        assert saved(page) == []


@pytest.mark.parametrize("hours", [1.25, 3.75, 24.0])
def test_building(hours: float, saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole day, and as little of one as a short story has; the page says which hours it shows."""
    building = load("building")
    midnight = pd.Timestamp(building.MIDNIGHT_MS, unit="ms", tz="UTC")
    rows = [
        (
            midnight + pd.Timedelta(seconds=quarter * 900),
            floor,
            room,
            100.0 + room,
            900.0 if (floor, room) == (3, 9) else 6.0,
        )
        for quarter in range(round(hours * 4))
        for floor in range(1, 6)
        for room in range(1, building.ROOMS_PER_FLOOR + 1)
    ]
    table = pd.DataFrame(rows, columns=["start", "floor", "room", "wh", "w_per_m2"])
    monkeypatch.setattr(building, "read_rows", lambda *_: table.copy())
    sent = pd.DataFrame({"due_s": np.linspace(0, 5_000, 400), "time_ms": building.MIDNIGHT_MS, "is_duplicate": False})
    play = SimpleNamespace(devices=SimpleNamespace(published=sent), stage=None)
    page = building.picture(play, [])
    said = " ".join(text.get_text() for text, _ in layout.texts(page.figure))
    assert ("on a January day" in said) == (hours == 24.0)
    assert ("20:00 to 05:00" in said) == (hours == 24.0)
    assert saved(page) == []


@pytest.mark.parametrize("seconds", LENGTHS.values(), ids=LENGTHS)
def test_fleet(seconds: float, saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the broker and the driver killed soon after each other, late or early."""
    fleet = load("fleet")
    times = [BEGUN_MS + round(at * 1000) for at in np.linspace(0, seconds, 200)]
    traces = [np.full(20, 60.0) + np.arange(20) + number % 9 for number in range(200)]
    names = [f"press-{number:02d}" for number in range(1, 21)]
    commands = [
        {"id": f"c{number}", "machine": names[number % 20], "celsius": 80.0, "sent_ms": times[number * 4 + 4],
         "at_ms": times[number * 4 + 4] + 700 + number}
        for number in range(45)
    ]  # fmt: skip
    devices = SimpleNamespace(trace_ms=times, traces=traces, names=names, commands=commands)
    for share in (0.05, 0.93):
        died = times[round(200 * share)]
        happened = fleet.Accidents(died, died + 500, died + 900, times[-1])
        monkeypatch.setattr(fleet, "ACCIDENTS", happened)
        assert saved(fleet.picture(SimpleNamespace(devices=devices), [])) == []


@pytest.mark.parametrize("seconds", LENGTHS.values(), ids=LENGTHS)
def test_ai(seconds: float, saved: Any) -> None:
    """With an assistant that speaks at once, and one that speaks at the very end."""
    ai = load("ai")
    every_ms = round(seconds * 10)
    asked = {
        f"q{number}": ai.Asked(
            ai.WATCHED, BEGUN_MS + number * every_ms,
            [{"worker": ai.WORKERS[number % 3], "at_ms": BEGUN_MS + number * every_ms + 400,
              "version": 1 + number // 20, "answer": f"at most {ai.PRESSURES[number // 20]} bar"}],
        )
        for number in range(100)
    }  # fmt: skip
    changes = [ai.Change(1 + step, bar, BEGUN_MS + step * 20 * every_ms) for step, bar in enumerate(ai.PRESSURES)]
    users = {f"user-{number:02d}": name for number, name in zip(range(12), [*ai.INTENTS] * 4, strict=True)}
    seen = {name: texts[0] for name, texts in ai.SEEN.items()}
    events = [(user, 1, seen[intent], BEGUN_MS + 500) for user, intent in users.items()]
    said = "Sounds like trouble with a machine. Shall a technician call you?"
    for share in (0.02, 1.0):
        at_ms = BEGUN_MS + round(seconds * 1000 * share)
        greetings = [
            {"user": user, "intent": intent, "sent_ms": BEGUN_MS, "at_ms": at_ms, "text": said}
            for user, intent in users.items()
        ]
        devices = SimpleNamespace(
            asked=asked, changes=changes, users=users, events=events, greetings=greetings,
            killed={"worker": "worker-2", "id": "q97", "at_ms": BEGUN_MS + 97 * every_ms},
        )  # fmt: skip
        stage = SimpleNamespace(words={"model": "hashing"})
        assert saved(ai.picture(SimpleNamespace(devices=devices, stage=stage), [])) == []
