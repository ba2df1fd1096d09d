"""The cluster commands: their output as columns and as JSON, their requests, and what they refuse to request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lightmq.cli.application import run
from remoting.protocol.frames.codes import ResponseCode


def out(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_status_names_leader_master_and_what_is_missing(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A group without its third replica is degraded, and so is the exit status; complete it is ok."""
    with pytest.raises(SystemExit) as ended:
        run(["cluster", "status", "--server", controller.address])
    assert ended.value.code == 1
    lines = out(capsys)
    assert lines[0][-2:] == [controller.address, "leads"]
    assert " ".join(lines[0]).startswith(f"controllers: n1-{controller.address}, n2-h:1 (cannot be reached); ")
    assert lines[2] == ["broker-a", "1", controller.address, "7", "2", "of", "3", "degraded"]
    controller.in_sync, controller.behind, controller.alive = [1, 2, 3], [], {1, 2, 3}
    assert run(["cluster", "status", "--json", "--server", controller.address]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["leader"], told["leaderId"], len(told["peers"])) == (controller.address, "n1", 2)
    assert told["unreachable"] == ["h:1"]
    assert told["groups"] == [
        {"group": "broker-a", "master": 1, "address": controller.address, "epoch": 7, "inSync": 3, "replicas": 3,
         "state": "ok", "mode": "controller", "promise": None, "warning": None},
    ]  # fmt: skip
    controller.master = None
    with pytest.raises(SystemExit):
        run(["cluster", "status", "--server", controller.address])
    assert "no master" in capsys.readouterr().out


def settings(in_sync_min: int) -> str:
    """A broker's settings as it reports them."""
    return (
        "store.flush=sync\nreplication.enabled=True\nreplication.acknowledge=all\nreplication.in_sync_replicas=2\n"
        f"replication.in_sync_min={in_sync_min}"
    )


def test_status_explains_an_acknowledgement(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """From the configuration of the master and the brokers that the controllers know."""
    controller.in_sync, controller.behind, controller.alive = [1, 2, 3], [], {1, 2, 3}
    controller.settings = settings(2)
    assert run(["cluster", "status", "--server", controller.address]) == 0
    said = capsys.readouterr()
    assert "broker-a: acknowledged = on disk at 2 of 3 brokers" in said.out
    assert "one may die" in said.out
    assert said.err == ""
    controller.in_sync, controller.alive = [1, 2], {1, 2}
    assert run(["cluster", "status", "--server", controller.address]) == 0
    said = capsys.readouterr()
    assert "acknowledged = on disk at 2 of 2 brokers" in said.out
    assert "warning: broker-a: a group of 2 with in_sync_min = 2 takes no messages while one broker is away" in said.err


def test_a_broker_in_no_group_has_its_line(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is alone and serves, which is not an error."""
    controller.in_sync, controller.behind, controller.alive = [1, 2, 3], [], {1, 2, 3}
    controller.lone = ["broker-z"]
    assert run(["cluster", "status", "--server", controller.address]) == 0
    assert out(capsys)[3] == ["broker-z", "-", controller.address, "-", "1", "of", "1", "alone"]


def test_a_broker_in_no_group_is_listed_like_a_group(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """After the groups, and found by its name."""
    controller.lone = ["broker-z"]
    assert run(["cluster", "members", "--server", controller.address]) == 0
    lines = out(capsys)
    assert [line[0] for line in lines[1:]] == ["broker-a", "broker-a", "broker-a", "broker-z"]
    alone = ["broker-z", "-", controller.address, "alone", "yes", "yes", "160", "-"]
    assert lines[4] == alone
    assert run(["cluster", "members", "broker-z", "--server", controller.address]) == 0
    assert out(capsys)[1:] == [alone]
    assert run(["cluster", "members", "broker-a", "--server", controller.address]) == 0
    assert {line[0] for line in out(capsys)[1:]} == {"broker-a"}
    assert run(["cluster", "members", "broker-q", "--server", controller.address]) == 1
    assert "no broker group 'broker-q'" in capsys.readouterr().err


def test_members_with_positions_of_those_that_answer(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A dead broker has no position; one that does not report it has none either."""
    assert run(["cluster", "members", "--server", controller.address]) == 0
    lines = out(capsys)
    assert lines[1] == ["broker-a", "1", controller.address, "master", "yes", "yes", "160", "0"]
    assert lines[3] == ["broker-a", "3", controller.address, "replica", "no", "no", "-", "-"]
    controller.tells_epochs = False
    assert run(["cluster", "members", "broker-a", "--json", "--server", controller.address]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["id"], row["alive"], row["inSync"], row["logEnd"]) for row in rows] == [
        (1, True, True, None), (2, True, True, None), (3, False, False, None),
    ]  # fmt: skip


def test_epochs_of_every_broker(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One line per epoch and broker; without any answer the command reports it and fails."""
    assert run(["cluster", "epochs", "broker-a", "--server", controller.address]) == 0
    lines = out(capsys)
    assert lines[0] == ["ID", "ADDRESS", "EPOCH", "START", "END"]
    assert lines[1] == ["1", controller.address, "5", "0", "100"]
    assert len(lines) == 7
    assert run(["cluster", "epochs", "broker-a", "--json", "--server", controller.address]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first == {"id": 1, "address": controller.address, "epoch": 5, "start": 0, "end": 100}
    controller.tells_epochs = False
    assert run(["cluster", "epochs", "broker-a", "--server", controller.address]) == 1
    assert "no broker of group 'broker-a' shows its epochs" in capsys.readouterr().err


def test_transfer_designates_only_a_possible_master(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A replica that is alive and has everything, and no other."""
    assert run(["cluster", "transfer", "broker-a", "2", "--server", controller.address]) == 0
    assert "broker 2 at host:2 is master of broker-a in epoch 8" in capsys.readouterr().out
    (asked,) = controller.elections
    assert (asked.cluster_name, asked.broker_name) == ("plant", "broker-a")
    assert (asked.broker_id, asked.designate_elect) == (2, True)
    assert asked.invoke_time > 0
    controller.alive = {1}
    for to, why in (("1", "already"), ("2", "not running"), ("3", "not in sync"), ("4", "has no broker 4")):
        assert run(["cluster", "transfer", "broker-a", to, "--server", controller.address]) == 1
        assert why in capsys.readouterr().err
    assert len(controller.elections) == 1


def test_elect_leaves_a_living_master_alone(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The controller's refusal is explained; any other is printed as it is."""
    assert run(["cluster", "elect", "broker-a", "--json", "--server", controller.address]) == 0
    assert json.loads(capsys.readouterr().out) == {"group": "broker-a", "master": 2, "address": "host:2", "epoch": 8}
    assert (controller.elections[0].broker_id, controller.elections[0].designate_elect) == (-1, False)
    controller.refusal = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert run(["cluster", "elect", "broker-a", "--server", controller.address]) == 1
    assert "to move it: lightmq cluster transfer" in capsys.readouterr().err
    controller.refusal = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert run(["cluster", "elect", "broker-a", "--server", controller.address]) == 1
    assert "lightmq:" in capsys.readouterr().err


def test_remove_spares_living_brokers(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A dead one is removed; a living one only with the option; an unknown one is a mistake."""
    assert run(["cluster", "remove", "broker-a", "3", "--server", controller.address]) == 0
    assert run(["cluster", "remove", "broker-a", "2", "--server", controller.address]) == 1
    assert "is running; stop it first, or add --living" in capsys.readouterr().err
    assert run(["cluster", "remove", "broker-a", "2", "3", "--living", "--server", controller.address]) == 0
    assert run(["cluster", "remove", "broker-a", "9", "--server", controller.address]) == 1
    asked = [(one.broker_controller_ids_to_clean, one.is_clean_living_broker) for one in controller.removals]
    assert asked == [("3", False), ("2;3", True)]


def test_an_unknown_group(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the existing ones."""
    assert run(["cluster", "members", "broker-x", "--server", controller.address]) == 1
    assert "no broker group 'broker-x'; known: broker-a" in capsys.readouterr().err


def test_a_group_that_is_away_is_shown_and_forgotten_on_demand(
    controller: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not one that has brokers, not without a confirmation, and an answer of every controller is needed."""
    forget = ["cluster", "forget", "--server", controller.address]
    controller.away = ["broker-b"]
    with pytest.raises(SystemExit):
        run(["cluster", "status", "--server", controller.address])
    assert ["broker-b", "-", "-", "-", "0", "of", "0", "no", "master"] in out(capsys)
    assert run([*forget, "broker-a"]) == 1
    assert "not known as a broker group that is away; these are: broker-b" in capsys.readouterr().err
    assert run([*forget, "broker-b"]) == 1
    assert "lightmq cluster forget broker-b --yes" in capsys.readouterr().err
    assert run([*forget, "broker-b", "--yes"]) == 1
    assert "not forgotten everywhere, repeat it when these answer: h:1" in capsys.readouterr().err
    assert (controller.away, controller.removals) == ([], [])
    controller.away, controller.other = ["broker-a"], controller.address
    assert run([*forget, "broker-a", "--yes"]) == 1
    assert "broker 1 of 'broker-a' is running" in capsys.readouterr().err
    controller.alive = set()
    assert run([*forget, "broker-a", "--yes"]) == 0
    assert "the controllers forgot the broker group broker-a" in capsys.readouterr().out
    assert [one.broker_name for one in controller.removals] == ["broker-a"]


def test_the_group_that_has_mqtt_is_shown_and_moved(controller: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Not while a proxy is connected, and not without a confirmation."""
    mqtt = ["cluster", "mqtt", "--server", controller.address]
    assert run(mqtt) == 0
    assert "no proxy has asked yet" in capsys.readouterr().out
    controller.mqtt_group, controller.lone, controller.proxies = "broker-a", ["broker-b"], ["p1"]
    with pytest.raises(SystemExit):
        run(["cluster", "status", "--server", controller.address])
    assert "MQTT is at broker-a" in capsys.readouterr().out
    move = [*mqtt, "--move-to", "broker-b"]
    assert run([*move, "--yes"]) == 1
    assert "1 proxies are connected to broker-a: stop all proxies and bridges first" in capsys.readouterr().err
    controller.proxies = []
    assert run(move) == 1
    assert "stay at broker-a: lightmq cluster mqtt --move-to broker-b --yes" in capsys.readouterr().err
    assert run([*move, "--yes"]) == 0
    assert controller.mqtt_group == "broker-b"
    assert run([*move, "--yes"]) == 1
    assert "MQTT is at broker-b already" in capsys.readouterr().err
    controller.away = ["broker-b"]
    assert run([*mqtt, "--move-to", "broker-a", "--yes"]) == 0
    assert "broker-b has no master" in capsys.readouterr().err
