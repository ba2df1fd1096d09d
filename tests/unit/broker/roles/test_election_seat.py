"""What an election learns of a member's log, and what it asks of the stream that fills it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.roles.election_seat import ElectionSeat


class Following:
    """A stream from a master of epoch 4, which notes what it is asked for."""

    def __init__(self) -> None:
        self.epoch, self.connected = 4, True
        self.fences: list[int] = []
        self.introduced: list[bool] = []
        self.following = self

    def fence(self, epoch: int) -> None:
        self.fences.append(epoch)

    def introduce(self, *, is_learner: bool) -> None:
        self.introduced.append(is_learner)


def seat(client: Following | None, *, quarantined: bool = False) -> ElectionSeat:
    store = SimpleNamespace(positions=SimpleNamespace(kept=300), quarantined=quarantined)
    member: Any = SimpleNamespace(store=store, client=client, log_state=lambda: SimpleNamespace(end=400, written=3))
    return ElectionSeat(member)


def test_how_far_the_log_goes() -> None:
    client = Following()
    assert seat(client).place() == (3, 400)
    assert seat(client).copied(4) == 300
    assert seat(client).copied(5) == -1
    client.connected = False
    assert seat(client).copied(4) == -1
    assert seat(None).copied(4) == -1
    assert seat(None).is_sound()
    assert not seat(None, quarantined=True).is_sound()


def test_a_later_term_ends_the_stream_and_a_voter_is_introduced_once() -> None:
    client = Following()
    one = seat(client)
    one.fence(5)
    assert client.fences == [5]
    one.count_copies(counted=True)
    assert client.introduced == []
    one.count_copies(counted=False)
    one.count_copies(counted=False)
    one.count_copies(counted=True)
    assert client.introduced == [True, False]
