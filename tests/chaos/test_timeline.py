"""The picture and the report match the run."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.chaos.judges import Verdict
from tests.chaos.ledger import Ledger
from tests.chaos.record import Record
from tests.chaos.report import Report, percentile
from tests.chaos.timeline import LEFT, picture

FAULTS = [
    {"at": 1.0, "kind": "kill", "targets": ["b1"], "lasts_s": 0.0},
    {"at": 3.0, "kind": "cut<", "targets": ["b1", "c1"], "lasts_s": 2.0},
]


def test_the_picture_has_a_bar_per_fault_and_target() -> None:
    """It is well-formed, and bars are where the faults were, at least wide enough to be seen."""
    root = ET.fromstring(picture(FAULTS, [10, 20, 0, 5], ["c1", "b1"], 10.0, "a & b"))
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["kill b1 at 1.0 s for 0.0 s", "cut< b1 at 3.0 s for 2.0 s", "cut< c1 at 3.0 s for 2.0 s"]
    bars = [each for each in root.iter() if each.find("{http://www.w3.org/2000/svg}title") is not None]
    places = [(float(bar.get("x", "0")), float(bar.get("width", "0"))) for bar in bars]
    assert places[0][0] > LEFT
    assert places[0][1] == 2.0
    assert places[1][1] > places[0][1]
    assert picture([], [], [], 0.0, "nothing")


def test_a_report_passes_only_when_all_judges_do(tmp_path: Path) -> None:
    """Without a verdict, with a violation or with a problem it fails; it is written as text, JSON and picture."""
    ledger = Ledger("m0", "t")
    for number in range(3):
        ledger.send(number * 1.0)
        ledger.acknowledge(number, number + 0.25)
    report = Report(7, "fault proxies", {"b1": "broker", "c1": "controller"}, 4.0, "again", faults=FAULTS)
    assert not report.passed
    report.verdicts.append(Verdict("log", 3))
    assert report.passed
    report.measure([ledger])
    assert (report.acknowledged, report.rates[:3]) == (3, [1, 1, 1])
    assert report.back_s == {"kill broker": [0.25]}
    report.problems.append("b1 ended")
    report.write(tmp_path)
    assert "FAILED: 2 faults" in (tmp_path / "report.txt").read_text()
    assert json.loads((tmp_path / "report.json").read_text())["passed"] is False
    assert (tmp_path / "timeline.svg").stat().st_size > 500
    report.problems.clear()
    report.verdicts[0].blame("lost", "m0:1")
    assert not report.passed


def test_percentiles() -> None:
    """Of nothing it is nothing."""
    assert percentile([], 0.5) == 0
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([3, 1, 2], 0.99) == 3


def test_every_event_is_one_line(tmp_path: Path) -> None:
    """Written at once, so that a run that is killed has its record."""
    record = Record(tmp_path / "events.jsonl")
    record.note("fault", kind="kill", targets=("a",))
    record.note("healed")
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["fault", "healed"]
    assert record.of("fault")[0]["kind"] == "kill"
    record.close()
