"""What unfinished frames may cost: shares, order, deadlines. Time and connections are made up, the account is real."""

from __future__ import annotations

from typing import Any

import pytest

from remoting.server.intake import ADDRESS, BUDGET, CONNECTION, DEADLINE, SLOW, TOTAL, WAITING_MAX, Intake, IntakeLimits

KB = 1_024


class Socket:
    def __init__(self, *, proved: bool = True, host: str = "10.0.0.1", named: bool = False) -> None:
        self.proved, self.idle, self.held, self._host, self._named = proved, False, False, host, named

    def host(self) -> str:
        return self._host

    def names_key(self) -> bool:
        return self._named

    def pause_reading(self) -> None:
        self.held = self.idle = True

    def resume_reading(self) -> None:
        self.held = self.idle = False


@pytest.fixture
def intake() -> Intake:
    return Intake(
        IntakeLimits(
            read_bytes_max=1_000 * KB, unproven_bytes_max=300 * KB, unproven_address_bytes_max=150 * KB,
            frame_deadline_ms=20_000, frame_bytes_per_s_min=KB,
        )
    )  # fmt: skip


def test_without_a_proof_a_connection_has_its_share(intake: Intake) -> None:
    one = Socket(proved=False)
    assert intake.progress(one, 64 * KB, 15_000 * KB, 0) == ""
    assert intake.progress(one, 64 * KB + 1, 15_000 * KB, 0) == CONNECTION
    intake.finished(one, 0)
    assert (intake.unproven_bytes, intake.refused[CONNECTION]) == (0, 1)


def test_in_the_name_of_a_key_it_draws_on_the_share_of_its_address_and_of_all(intake: Intake) -> None:
    assert intake.progress(Socket(proved=False, named=True), 150 * KB, 15_000 * KB, 0) == ""
    assert intake.progress(Socket(proved=False), 1, 100, 0) == ADDRESS
    assert intake.progress(Socket(proved=False, host="10.0.0.2", named=True), 149 * KB, 15_000 * KB, 0) == ""
    assert intake.progress(Socket(proved=False, host="10.0.0.3"), KB, 15_000 * KB, 0) == TOTAL


def test_proved_peers_reserve_and_wait_in_order(intake: Intake) -> None:
    first, second, third = Socket(), Socket(), Socket()
    assert intake.progress(first, 8, 600 * KB, 0) == ""
    for each in (second, third):
        assert intake.progress(each, 8, 600 * KB, 0) == ""
    assert (first.held, second.held, third.held) == (False, True, True)
    assert (intake.reserved_bytes, intake.waiting) == (600 * KB, 2)
    intake.finished(first, 1)
    assert (second.held, third.held, intake.reserved_bytes) == (False, True, 600 * KB)
    intake.finished(second, 1)
    intake.finished(third, 1)
    assert (third.held, intake.reserved_bytes, intake.waiting) == (False, 0, 0)


def test_a_frame_above_the_budget_passes_alone(intake: Intake) -> None:
    large = Socket()
    assert intake.progress(large, 8, 5_000 * KB, 0) == ""
    assert not large.held


def test_so_many_wait_and_no_more(intake: Intake) -> None:
    intake.progress(Socket(), 8, 1_000 * KB, 0)
    assert [intake.progress(Socket(), 8, KB, 0) for _ in range(WAITING_MAX)] == [""] * WAITING_MAX
    assert intake.progress(Socket(), 8, KB, 0) == BUDGET


def overdue(intake: Intake, now_s: float) -> list[tuple[Any, str]]:
    return list(intake.overdue(now_s))


def test_a_frame_comes_with_some_speed_at_any_time(intake: Intake) -> None:
    """What stands still is cut after seconds, however much of it came before."""
    steady, slow = Socket(), Socket()
    intake.progress(steady, 100 * KB, 400 * KB, 0)
    intake.progress(slow, 4 * KB, 400 * KB, 0)
    assert overdue(intake, 4.9) == []
    assert overdue(intake, 5) == [(slow, SLOW)]
    intake.finished(slow, 5)
    intake.progress(steady, 105 * KB, 400 * KB, 6)
    assert overdue(intake, 10) == []
    assert overdue(intake, 15) == [(steady, SLOW)]


def test_a_frame_ends_in_time(intake: Intake) -> None:
    """However steadily it comes; who has proved nothing has less time."""
    steady, stranger = Socket(), Socket(proved=False)
    for second in range(21):
        intake.progress(steady, (second + 1) * 5 * KB, 400 * KB, second)
        if second <= 10:
            intake.progress(stranger, (second + 1) * 5 * KB, 64 * KB, second)
            assert overdue(intake, second) == []
    assert overdue(intake, 10.5) == [(stranger, DEADLINE)]
    intake.finished(stranger, 10.5)
    assert overdue(intake, 20) == []
    assert overdue(intake, 20.5) == [(steady, DEADLINE)]


def test_time_does_not_run_while_this_side_does_not_read(intake: Intake) -> None:
    first, second = Socket(), Socket()
    intake.progress(first, 8, 1_000 * KB, 0)
    intake.progress(second, 8, 1_000 * KB, 0)
    assert overdue(intake, 20.5) == [(first, DEADLINE)]
    intake.finished(first, 20.5)
    assert overdue(intake, 24) == []


def test_a_frame_that_was_forgotten_costs_nothing(intake: Intake) -> None:
    intake.finished(Socket(), 0)
    assert intake.reserved_bytes == 0
