"""The judge of visibility finds what a broker showed too early, and what was shown and lost."""

from __future__ import annotations

from typing import Any

from tests.chaos.visibility import sample_of, visibility


def page(confirmed: int, end: int, **replicas: int) -> dict[str, Any]:
    """A master's status page; `r2=50`: replica 2 counts and has acknowledged 50."""
    told = [{"id": int(name[1:]), "acknowledged": position} for name, position in replicas.items()]
    told.append({"id": 9, "acknowledged": 0, "learner": True})
    state = {"epoch": 3, "confirmed": confirmed, "flushed": end, "end": end}
    return {"member": {**state, "required": [1, *(each["id"] for each in told[:-1])], "replicas": told}}


def judged(end: int, *pages: dict[str, Any]) -> dict[str, int]:
    found = [sample_of(float(at), "b1", each) for at, each in enumerate(pages)]
    verdict = visibility([each for each in found if each is not None], end)
    assert verdict.passed == (verdict.checked > 0 and not sum(verdict.counts.values()))
    return verdict.counts


def test_what_all_that_count_have_may_be_shown() -> None:
    """A learner does not count, nor does a replica that has returned and reported nothing yet."""
    pages = [page(50, 80, r2=50, r3=70), page(70, 90, r2=70, r3=-1), {"member": {"stage": "STARTING"}}]
    assert judged(70, *pages) == {"unconfirmed": 0, "vanished": 0}


def test_what_a_replica_lacks_must_not_be_shown() -> None:
    """Nor what the broker itself does not have."""
    assert judged(100, page(51, 80, r2=50, r3=70))["unconfirmed"] == 1
    assert judged(100, page(81, 80))["unconfirmed"] == 1


def test_a_majority_of_an_elected_group_has_what_is_shown() -> None:
    """One of three may lack it, two may not, the master's own disk counted."""

    def elected(flushed: int, **replicas: int) -> dict[str, Any]:
        found = page(50, 80, **replicas)
        found["member"] |= {"mode": "dledger", "role": "master", "members": [1, 2, 3], "flushed": flushed}
        return found

    assert judged(80, elected(80, r2=50, r3=40), elected(40, r2=50, r3=50))["unconfirmed"] == 0
    assert judged(80, elected(80, r2=49, r3=40))["unconfirmed"] == 2
    assert judged(80, elected(49, r2=50, r3=40))["unconfirmed"] == 2


def test_what_was_shown_must_stay() -> None:
    """The log ends before something that was readable."""
    assert judged(60, page(61, 80, r2=80))["vanished"] == 1


def test_no_samples_prove_nothing() -> None:
    """A run without samples does not pass."""
    assert not visibility([], 0).passed
