"""The anomaly rule depends on the order of the readings alone and stays quiet after an alarm."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lightmq.demo.rule import QUIET_READINGS, WARM_UP_READINGS, SensorState, step


def judge(values: list[float], state: SensorState | None = None) -> tuple[SensorState, list[int]]:
    """Run the rule over values; return the state and the indexes of the alarms."""
    current, alarms = state or SensorState(), []
    for index, value in enumerate(values):
        current, deviation = step(current, value)
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
