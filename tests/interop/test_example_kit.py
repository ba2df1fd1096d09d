"""What the stories share, without Spark: disturbances, claims, the command line, the rule of the fleet."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
EXAMPLES = str(Path(__file__).resolve().parents[2] / "examples")


def load(name: str) -> ModuleType:
    """A module of the examples, as a script beside it would import it."""
    if EXAMPLES not in sys.path:
        sys.path.insert(0, EXAMPLES)
    return importlib.import_module(name)


def measured(devices: int = 5, each: int = 60) -> Any:
    """Messages of a few devices, one a second."""
    rows = [(f"d{device}", second + device / 10) for second in range(each) for device in range(devices)]
    frame = pd.DataFrame(rows, columns=["device", "due_s"])
    return frame.assign(measured_s=frame["due_s"], number=range(len(frame)))


@given(
    seed=st.integers(0, 2**32 - 1),
    shares=st.fixed_dictionaries({name: st.floats(0, 1) for name in ("late", "duplicates", "out_of_order", "offline")}),
)
def test_disturbances_lose_nothing_and_repeat_themselves(seed: int, shares: dict[str, float]) -> None:
    """Every message is sent, in the order of its time to go; repeated ones are marked; one seed gives one story."""
    disturbances = load("kit").Disturbances(**shares, late_by_s=20, offline_for_s=15)
    sent = disturbances.apply(measured(), np.random.default_rng(seed))
    again = disturbances.apply(measured(), np.random.default_rng(seed))
    pd.testing.assert_frame_equal(sent, again)
    assert sorted(sent.loc[~sent["is_duplicate"], "number"]) == list(range(300))
    assert sent["due_s"].is_monotonic_increasing
    assert (sent["due_s"] >= sent["measured_s"] - 1e-9).all()
    assert (sent["due_s"] <= sent["measured_s"] + 20 + 15 + 2).all()


def test_what_a_device_kept_while_it_was_offline_comes_in_order() -> None:
    sent = load("kit").Disturbances(offline=1.0, offline_for_s=15).apply(measured(), np.random.default_rng(1))
    assert sent["is_offline"].sum() > 50
    for _, mine in sent.groupby("device"):
        assert mine["number"].is_monotonic_increasing


def test_without_disturbances_nothing_changes() -> None:
    sent = load("kit").Disturbances().apply(measured(), np.random.default_rng(1))
    assert list(sent["number"]) == list(range(300))
    assert not sent[["is_late", "is_duplicate", "is_offline", "is_out_of_order"]].any(axis=None)


def test_a_claim_shows_its_figures() -> None:
    kit = load("kit")
    assert kit.equal("rows", sent=1000, read_by_Spark=1000) == kit.Claim(
        "rows", "sent 1,000 = read by Spark 1,000", holds=True
    )
    assert kit.equal("rows", sent=3, read=2) == kit.Claim("rows", "sent 3 / read 2", holds=False)


def test_a_query_without_rows_is_named(tmp_path: Path) -> None:
    kit = load("kit")
    place = {"server": "h:1", "mqtt_host": "h", "mqtt_port": 2, "out": str(tmp_path), "from_ms": 0}
    stage = kit.Stage(**place, seconds=3.0, speed=1.0, seed=1, options={}, words={})
    with pytest.raises(RuntimeError, match="the query visits has written nothing"):
        kit.read_rows(stage, "visits")


def test_rates_are_drawn_as_bars() -> None:
    assert load("kit.view").sparkline(deque([0.0, 5.0, 10.0])) == " ▄█"


def test_a_stage_travels_to_spark_and_back(tmp_path: Path) -> None:
    stage = load("kit").Stage(
        server="h:1", mqtt_host="h", mqtt_port=2, out=str(tmp_path), from_ms=0, seconds=3.0, speed=10.0, seed=4,
        options={"late": 0.5}, words={"model": "a"},
    )  # fmt: skip
    assert load("kit").Stage.load(str(stage.save())) == stage
    assert stage.story_s == 30.0
    assert stage.source == {"nameServer": "h:1", "startingOffsets": "earliest"}


def test_help_imports_nothing_that_draws_or_computes() -> None:
    """Nor does Spark's process, which is the same script: pandas and matplotlib take seconds of CPU."""
    script = str(Path(EXAMPLES, "building.py"))
    program = (
        "import runpy, sys\n"
        f"sys.argv = [{script!r}, '--help']\n"
        f"sys.path.insert(0, {EXAMPLES!r})\n"
        "try:\n"
        f"    runpy.run_path({script!r}, run_name='__main__')\n"
        "except SystemExit:\n"
        "    print(sorted({'pandas', 'matplotlib', 'sklearn'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_pandas_for_later_is_pandas_in_a_worker() -> None:
    later = load("kit.later").pd
    assert pickle.loads(pickle.dumps(later)) is pd
    assert later.Series is pd.Series


@pytest.mark.parametrize(
    "wrong", [["--seconds", "0"], ["--speed", "-1"], ["--unknown"], ["--server", "here"], ["--mqtt", "here:mqtt"]]
)
def test_wrong_options_end_with_a_sentence(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    example = load("building").EXAMPLE
    with pytest.raises(SystemExit) as ended:
        load("kit.run").parse(example, wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("story", ["laptop", "ai"])
def test_what_is_not_installed_is_said_in_one_sentence(story: str) -> None:
    """A Python without any packages: `-S` leaves them out."""
    command = [sys.executable, "-S", str(Path(EXAMPLES, f"{story}.py")), "--help"]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "pyspark" in done.stderr
    assert f"make example NAME={story}" in done.stderr


@given(st.lists(st.floats(-60, 160), min_size=1, max_size=120), st.data())
def test_the_rule_of_the_fleet_ignores_what_was_sent_again(celsius: list[float], data: st.DataObject) -> None:
    """A reading that comes again, anywhere later, changes neither the state nor the commands."""
    fleet = load("fleet")
    once, twice = fleet.Watched(), fleet.Watched()
    for seq, value in enumerate(celsius):
        once, decided = fleet.judge(once, seq, value)
        twice, decided_too = fleet.judge(twice, seq, value)
        earlier = data.draw(st.integers(0, seq))
        twice, nothing = fleet.judge(twice, earlier, celsius[earlier])
        assert (decided, nothing) == (decided_too, None)
        assert once == twice


def test_the_same_seed_drives_the_same_way() -> None:
    vehicles = load("vehicles")
    one, other = (vehicles.drive(30, np.random.default_rng(3)) for _ in range(2))
    pd.testing.assert_frame_equal(one, other)
    assert one["x"].between(0, vehicles.WIDTH_M).all()
    assert one["y"].between(0, vehicles.HEIGHT_M).all()
    step = one.sort_values(["vehicle", "time_ms"]).groupby("vehicle")[["x", "y"]].diff().abs().sum(axis=1)
    assert step.max() <= 18.2


def test_the_page_of_the_vans_holds_its_data() -> None:
    template = Path(EXAMPLES, "vehicles_map.html").read_text()
    assert template.count("__DATA__") == 1
    assert "http://" not in template
    assert "https://" not in template
    json.dumps(load("vehicles").COLOURS)
