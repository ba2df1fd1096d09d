"""Hundreds of schedules keep every rule, and a seed determines the whole history."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.consensus.journal import Entry
from controller.raft.messages import AppendAnswer
from tests.sim.raft.__main__ import main, run_in_memory, told
from tests.sim.raft.checkers import Judge
from tests.sim.raft.member_rules import Violation

SCHEDULES, PARTS = 240, 6


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("engine", ["dledger", "pysyncobj"])
def test_no_schedule_breaks_a_rule(engine, part):
    """Whatever fails, the nodes agree, nothing answered is lost or done twice, and all go on in the end."""
    size = SCHEDULES // PARTS
    results = [run_in_memory(seed, engine=engine) for seed in range(part * size, (part + 1) * size)]
    assert [told(each, None, engine) for each in results if each.rule] == []
    assert sum(each.answered for each in results) > 15 * size, "too little was answered to prove anything"
    assert sum(each.reads for each in results) > 5 * size
    assert sum(each.terms for each in results) > 2 * size
    faults = sum((each.faults for each in results), Counter())
    assert faults.total() > 20 * size
    assert faults["cut in the middle"] > size // 2
    assert faults["wiped"] > 0


def test_a_seed_replays_its_history():
    """The same seed gives the same story; another one does not."""
    for engine in ("dledger", "pysyncobj"):
        assert run_in_memory(7, engine=engine) == run_in_memory(7, engine=engine)
        assert run_in_memory(7, engine=engine).faults != run_in_memory(11, engine=engine).faults


@dataclass
class Shown:
    """What the judge looks at of a node."""

    term: int
    journal: list[Entry]
    voted_for: str | None = None


def test_a_start_may_find_its_log_contradicted():
    """By a leader's state of a later term that was kept before the crash; nothing else takes what was acknowledged."""
    for term, expected in ((4, nullcontext()), (1, pytest.raises(Violation, match="n3 has 23 of"))):
        judge = Judge()
        judge.said("n3", Shown(1, []), AppendAnswer(1, 0, matched=True, index=47), "n1")
        judge.replaced("n3", 23, term)
        with expected:
            judge.booted("n3", Shown(4, [(b"", 23, term)]))


def test_a_power_cut_between_a_state_and_the_log_that_it_replaces():
    """This seed has one: the state is on the disk, the log of an earlier term behind it is dropped by the start."""
    assert run_in_memory(1_049_615, engine="dledger").rule == ""


def history(seed: int, hash_seed: int) -> str:
    """The digest of a seed's history in a process of its own."""
    command = [sys.executable, "-m", "tests.sim.raft", "--engine", "pysyncobj", "--schedules", "1", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    ran = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    return ran.stdout.splitlines()[-1]


@pytest.mark.parametrize("seed", [40_121, 40_493])
def test_a_seed_has_one_history_whatever_the_hashes_of_its_process(seed):
    """Each message, state and fault is the same; a set of texts once decided which node noticed a crash first."""
    first = history(seed, 1)
    assert first.startswith("history ")
    assert {history(seed, hash_seed) for hash_seed in (2, 7)} == {first}


def test_the_command_names_the_seed_and_how_to_replay_it(capsys):
    """With a planted bug it stops at the first violation; without one it counts."""
    assert main(["--plant", "applies-twice", "--schedules", "50"]) == 0
    said = capsys.readouterr().out
    assert "replay: python -m tests.sim.raft --schedules 1 --seed" in said
    assert "--plant applies-twice" in said
    assert main(["--schedules", "2", "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert "2 schedules from seed 3: 0 violations" in said
    assert " deliver " not in said
    assert main(["--schedules", "1", "--seed", "3", "--trace"]) == 0
    assert " deliver n1 n2 " in capsys.readouterr().out
    assert main(["--plant", "stale-reads", "--schedules", "0"]) == 1
