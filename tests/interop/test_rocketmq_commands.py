"""Every command of RocketMQ's `mqadmin`, at RocketMQ's broker and at ours: the same outcome, or a row with the reason.

A producer and a consumer of RocketMQ's client are connected to both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import maven
from tests.interop import command_scenario, rocketmq_java
from tests.interop.command_scenario import COMMANDS, DIFFERENCES, ENDLESS, MEMBERS_TOPIC
from tests.interop.rocketmq_java import JavaProcess
from tests.interop.rocketmq_servers import rocketmq_servers
from tests.processes.rig import Server
from tests.support.tree import ROOT

NOISE = ("|-INFO", "|-WARN", "\tat ")
DEADLINE_MS = 20_000
PAGE = ROOT / "docs" / "howto" / "rocketmq.md"


def outcomes(classes: Path, home: Path, broker: int, names: int) -> tuple[dict[str, str], set[str]]:
    """(the outcome of each line, the names of all commands)."""
    folder = home / "files"
    folder.mkdir(parents=True)
    command_scenario.write_files(folder)
    places = {"ns": f"127.0.0.1:{names}", "broker": f"127.0.0.1:{broker}", "folder": str(folder)}
    members = JavaProcess(classes, home / "members", "Members", places["ns"], MEMBERS_TOPIC)
    tools = None
    try:
        _, client, unique, offset = members.wait_for("member ", 90).split()
        tools = JavaProcess(classes, home, "AdminCommands", str(DEADLINE_MS))
        found: dict[str, str] = {}
        for count, line in enumerate(["", *COMMANDS], 1):
            begin = len(tools.lines)
            tools.say(line.format(client=client, unique=unique, offset=offset, **places))
            tools.wait_for("<== ", 60, count=count)
            printed = [each for each in tools.lines[begin:] if each and not any(noise in each for noise in NOISE)]
            if count == 1:
                listed = {each.split()[0] for each in printed if each.startswith("   ") and len(each.split()) > 1}
            else:
                found[line] = command_scenario.outcome(printed)
        return found, listed
    finally:
        members.kill()
        if tools is not None:
            tools.kill()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_every_command_has_the_same_outcome_or_a_reason(tmp_path: Path) -> None:
    jars = maven.jars("rocketmq")
    if jars is None:
        pytest.skip("RocketMQ's servers cannot be fetched")
    (tmp_path / "classes").mkdir()
    classes = rocketmq_java.compiled(tmp_path / "classes")
    with rocketmq_servers(jars, tmp_path / "rocketmq") as (broker, names):
        theirs, listed = outcomes(classes, tmp_path / "theirs", broker, names)
    server = Server(tmp_path / "data")
    server.start()
    try:
        port = server.ports["remoting"]
        ours, _ = outcomes(classes, tmp_path / "ours", port, port)
    finally:
        server.kill_if_running()
    assert listed == {line.split()[0] for line in COMMANDS}
    wrong = []
    for line in COMMANDS:
        row = command_scenario.difference(line)
        wanted = row[:2] if row is not None else (theirs[line], theirs[line])
        if (theirs[line], ours[line]) != wanted:
            wrong.append(f"{line}: RocketMQ {theirs[line]}, here {ours[line]}, wanted {wanted}")
    assert not wrong, "\n".join(wrong)
    assert {line.split()[0] for line in COMMANDS if ours[line] == command_scenario.HANGS} <= set(ENDLESS)


def test_every_difference_is_one_of_a_line_and_every_command_is_in_the_manual() -> None:
    unused = [name for name in DIFFERENCES if not any(line == name or line.startswith(name + " ") for line in COMMANDS)]
    assert not unused
    page = PAGE.read_text()
    missing = {name for line in COMMANDS if f"`{(name := line.split()[0])}`" not in page}
    assert not missing
