"""Repeated batch numbers: when they are taken for replays, and what is said where they are none."""

from __future__ import annotations

import pytest

from remoting.protocol.bodies.sink_body import BatchDigest
from spark_connector.errors import OptionError
from spark_connector.options.read_write import parse_write
from spark_connector.writing import replays
from spark_connector.writing.replays import KIND, Replayed, check_behind, check_same, note_commit

FAIL, SKIP = parse_write({"topic": "t"}), parse_write({"topic": "t", "replayMismatch": "skip"})
BATCH_WRITE = parse_write({"topic": "t", "txnAppId": "app", "txnVersion": "1"})
KNOWN = BatchDigest(50, 1, 2, KIND, "query-1")
OTHER = BatchDigest(120, 3, 4, KIND, "query-1")


def test_the_same_rows_and_unknown_ones_are_a_replay() -> None:
    for known, mine in ((KNOWN, KNOWN), (None, OTHER), (KNOWN, None)):
        check_same(Replayed("s", 1, mine), known, FAIL, was_staged=False)
    check_same(Replayed("s", 1, OTHER), KNOWN, SKIP, was_staged=True)


@pytest.mark.parametrize(
    ("mine", "known", "was_staged", "says"),
    [
        (Replayed("s", 1, OTHER, "run-2"), KNOWN, False, "restored from an older backup. Restore one that has fin"),
        (Replayed("s", 0, OTHER, "run-2"), KNOWN, False, "restored from an older backup"),
        (Replayed("s", 0, OTHER), BatchDigest(50, 1, 2, KIND), False, "a new checkpoint under the name"),
        (Replayed("s", 1, BatchDigest(9, 3, 4, KIND, "query-2")), KNOWN, False, "a new checkpoint under the name"),
        (Replayed("s", 1, OTHER, "run-2"), KNOWN, True, "a copied checkpoint that two queries use at once. Stop one"),
        (Replayed("s", 1, OTHER, "run-1"), KNOWN, False, "a copied checkpoint that two queries use at once"),
    ],
)
def test_other_rows_are_refused_with_what_it_looks_like(
    mine: Replayed, known: BatchDigest, was_staged: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run-1` has committed in this process before."""
    monkeypatch.setattr(replays, "_COMMITTED", {})
    note_commit("run-1")
    with pytest.raises(OptionError) as failure:
        check_same(mine, known, FAIL, was_staged=was_staged)
    assert says in str(failure.value)
    assert "with 50 rows, and this query writes" in str(failure.value)
    assert "'replayMismatch' = skip" in str(failure.value)


def test_as_many_other_rows_are_called_so() -> None:
    with pytest.raises(OptionError, match="writes as many other ones"):
        check_same(Replayed("s", 1, BatchDigest(50, 1, 3, KIND, "query-1")), KNOWN, FAIL, was_staged=False)


def test_a_batch_before_the_last_cannot_be_compared() -> None:
    check_behind(Replayed("s", 4, None, "run-1"), 4, FAIL)
    check_behind(Replayed("s", 3, None, "run-1"), 4, SKIP)
    with pytest.raises(OptionError, match="batch 4 and this query writes batch 3"):
        check_behind(Replayed("s", 3, None, "run-1"), 4, FAIL)


@pytest.mark.parametrize("was_staged", [False, True])
def test_a_write_of_no_query_is_told_of_its_version_and_of_no_checkpoint(was_staged: bool) -> None:
    with pytest.raises(OptionError) as failure:
        check_same(
            Replayed("app", 1, BatchDigest(9, 3, 4, KIND)),
            BatchDigest(50, 1, 2, KIND),
            BATCH_WRITE,
            was_staged=was_staged,
        )
    assert "'txnAppId' = 'app' has committed version 1 with 50 rows, and this write has 9 other ones" in str(
        failure.value
    )
    with pytest.raises(OptionError, match="committed version 4, and this write is version 3") as behind:
        check_behind(Replayed("app", 3, None), 4, BATCH_WRITE)
    for said in (str(failure.value), str(behind.value)):
        assert "higher 'txnVersion'" in said
        assert "checkpoint" not in said
        assert "query" not in said


def test_only_so_many_runs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "_COMMITTED", {})
    monkeypatch.setattr(replays, "RUNS_REMEMBERED", 2)
    for run in ("a", "b", "", "c"):
        note_commit(run)
    assert list(replays._COMMITTED) == ["b", "c"]
