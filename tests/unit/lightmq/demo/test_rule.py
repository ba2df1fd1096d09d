"""The anomaly rule depends on the order of the readings alone and stays quiet after an alarm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightmq.demo.rule import QUIET_READINGS, RESOLUTIONS, WARM_UP_READINGS, SensorState, resolution, step


def judge(values: list[float], state: SensorState | None = None, sensor: str = "heat") -> tuple[SensorState, list[int]]:
    """Run the rule over values; return the state and the indexes of the alarms."""
    current, alarms = state or SensorState(), []
    for index, value in enumerate(values):
        current, deviation = step(current, sensor, value)
        if deviation is not None:
            alarms.append(index)
    return current, alarms


def test_a_jump_out_of_a_calm_series_is_an_anomaly() -> None:
    """A settled sensor that jumps is noticed at once."""
    calm = [10.0 + 0.1 * (index % 3) for index in range(WARM_UP_READINGS + 5)]
    assert judge([*calm, 25.0])[1] == [len(calm)]


def test_nothing_is_an_anomaly_before_the_sensor_is_known() -> None:
    """The first readings only teach the rule what is normal."""
    assert judge([0.0, 1e9] * (WARM_UP_READINGS // 2 - 1))[1] == []


def test_one_event_gives_one_alarm() -> None:
    """After an alarm the sensor stays quiet for a while."""
    calm = [10.0 + 0.1 * (index % 3) for index in range(60)]
    _, alarms = judge([*calm, *[50.0] * (QUIET_READINGS - 1)])
    assert alarms == [60]


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(0, 200))
def test_batches_do_not_matter(values: list[float], cut: int) -> None:
    """Judged in one go or in two, the state and the alarms are the same."""
    whole_state, whole = judge(values)
    half_state, first = judge(values[:cut])
    rest_state, second = judge(values[cut:], half_state)
    assert (rest_state, first + [index + min(cut, len(values)) for index in second]) == (whole_state, whole)


@pytest.mark.parametrize(
    ("sensor", "idle", "stir"),
    [
        ("disk_write_bytes_per_s", 0.0, 14_700.0),
        ("disk_read_bytes_per_s", 0.0, 2e6),
        ("network_received_bytes_per_s", 0.0, 60_000.0),
        ("cpu0_percent", 0.0, 12.0),
        ("cpu0_percent", 100.0, 90.0),
        ("memory_percent", 41.0, 41.1),
        ("load_1min", 0.0, 0.2),
        ("processes", 120.0, 123.0),
        ("wakeup_late_ms", 0.0, 2.5),
        ("anything", 0.0, 0.02),
        ("anything", 1_000.0, 1_020.0),
    ],
)
def test_the_first_stir_of_a_sensor_that_stood_still_is_no_anomaly(sensor: str, idle: float, stir: float) -> None:
    """Its variance is zero; its spread has a floor."""
    assert judge([idle] * 200 + [stir] + [idle] * 50, sensor=sensor)[1] == []


@pytest.mark.parametrize("sensor", [*(f"{name}x" for name, _ in RESOLUTIONS), "anything"])
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=200))
def test_what_stays_within_the_resolution_never_is(sensor: str, parts: list[float]) -> None:
    values = [resolution(sensor) * part for part in parts]
    assert judge(values, sensor=sensor)[1] == []


def test_a_busy_disk_after_an_idle_one_is_an_anomaly_of_a_size_one_can_read() -> None:
    """Tens of megabytes a second out of nothing: some tens of spreads, not billions."""
    state, _ = judge([0.0] * 200, sensor="disk_write_bytes_per_s")
    assert step(state, "disk_write_bytes_per_s", 30e6)[1] == pytest.approx(30.0)
