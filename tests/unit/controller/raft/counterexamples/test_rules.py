"""Each rule of the core names its counterexample, and each decision of the core belongs to a rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from remoting.protocol.voting import VOTE_RULES, VoteAnswer
from tests.support.plants import Plant
from tests.support.tree import ROOT
from tests.unit.controller.raft.counterexamples import (
    test_elections,
    test_log,
    test_members,
    test_newcomers,
    test_reads,
    test_snapshots,
)
from tests.unit.controller.raft.counterexamples.rules import PLANTS, SCRIPTS

FILES = (test_elections, test_log, test_members, test_newcomers, test_reads, test_snapshots)
README = ROOT / "controller/raft/README.md"
ROW = re.compile(r"^\| (?P<rule>[^|]+) \| (?P<where>[^|]+) \| `(?P<file>\w+)`: `(?P<test>\w+)` \|$", re.MULTILINE)
PACE = {
    "Raft._has_leader": "asked by the table of votes, whose rows have rules",
    "Raft._stand": "asks the others; who may stand and who is counted are rules",
    "Raft._voted": "answers of another term or kind: test_candidates",
    "Raft.read": "only a leader answers: test_core",
    "Raft.hand_over": "refuses misuse: test_core",
    "Raft.connected": "how soon it asks for votes after a connection is lost",
    "Raft.advance": "what is written is written: test_known_faults, swallowed write errors",
    "MemberProgress.probe": "where comparing begins",
    "Leading.use": "whom it sends to",
    "Leading.beat": "when something is sent again",
    "Leading.caught_up": "asked by `Raft.change`",
    "Leading.appended": "what is sent next: test_log_rules",
    "Leading._counts": "late refusals send nothing again",
    "Leading.installed": "which piece comes next",
    "Leading._agreed": "how fast the place is found where two logs agree",
    "Leading.messages": "when something is sent",
    "Leading._append": "how much is sent",
    "Leading._piece": "how much of a state is sent",
    "MemberHistory.check": "refuses an entry before the log has it: test_log_rules",
    "MemberHistory.appended": "asked by `Raft._append` and `Raft.change`",
    "MemberHistory.cut": "asked by `Raft._append`",
    "MemberHistory.forget": "leaves out what nobody asks for",
    "RaftLog.term": "absent or there: test_log",
    "RaftLog.entries": "how much is sent: test_log",
    "RaftLog.conflict": "asked by `Raft._append`",
    "RaftLog.cut": "asked by `Raft._append`, which checks",
    "RaftLog.first_of_term": "how fast the place is found where two logs agree",
    "RaftLog.last_up_to_term": "how fast the place is found where two logs agree",
    "RaftLog.persisted": "what was cut meanwhile is not durable: test_log",
    "RaftLog.forget": "leaves out what a state holds: test_known_faults, 268",
}
"""Functions that decide and are no rule of consensus: why, or which rule or test speaks of them."""


def test_the_table_names_every_rule_and_its_script():
    """README's table and the scripts have the same rules, functions and tests."""
    written = {found["rule"]: found for found in ROW.finditer(README.read_text())}
    assert sorted(written) == sorted(SCRIPTS)
    for rule, script in SCRIPTS.items():
        found = written[rule]
        assert (found["file"], found["test"]) == (Path(script.__code__.co_filename).stem, script.__name__)
        named = {each.where.rpartition(".")[2] for each in PLANTS[rule] if isinstance(each, Plant)}
        assert named <= set(re.findall(r"`(\w+)`", found["where"])), f"{rule}: the table has {found['where']}"


def test_every_script_is_in_the_table():
    """A script beside the rules would be one that no plant has proved."""
    ours = {each for file in FILES for name, each in vars(file).items() if name.startswith("test_")}
    assert {each.__name__ for each in ours} - {each.__name__ for each in SCRIPTS.values()} == {
        "test_the_leader_of_two_removes_itself_and_its_power_fails_at_any_moment"
    }


@pytest.mark.parametrize("module", ["core", "leading", "membership", "log"])
def test_every_decision_belongs_to_a_rule(module):
    """A function that has a condition is the place of some rule, or says why it is none."""
    tree = ast.parse((ROOT / f"controller/raft/{module}.py").read_text())
    deciding = {
        f"{one.name}.{function.name}"
        for one in tree.body
        if isinstance(one, ast.ClassDef)
        for function in one.body
        if isinstance(function, ast.FunctionDef) and any(isinstance(each, _CONDITIONS) for each in ast.walk(function))
    }
    ruled = {each.where.partition(":")[2] for plants in PLANTS.values() for each in plants if isinstance(each, Plant)}
    assert deciding - ruled - set(PACE) == set()
    assert set(PACE) & ruled == set(), "these have rules"


_CONDITIONS = ast.If | ast.IfExp | ast.While | ast.BoolOp | ast.Compare


def test_every_row_of_the_table_of_votes_is_left_out_once():
    """But the one that breaks a tie between two trials."""
    left_out = " ".join(each.__name__ for plants in PLANTS.values() for each in plants if not isinstance(each, Plant))
    rows = [answer for answer, _ in VOTE_RULES if answer is not VoteAnswer.REJECT_TAKING_LEADERSHIP]
    assert [row.name for row in rows if row.name.lower() not in left_out] == []
