from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from paho.mqtt.client import MQTTErrorCode, MQTTMessageInfo

from lightmq.cli.application import run
from lightmq.cli.messages.publish import OTHER_REASONS, REASONS_MAX, PublishCounts, _is_published


def test_messages_are_numbered_and_acknowledged(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "pub",
        "-p",
        str(mqtt_server.port),
        "-t",
        "a/b",
        "-m",
        "n{n}",
        "--count",
        "5000",
        "--timeout",
        "2",
        "--json",
    ]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "a/b", "qos": 1, "acknowledged": 5000, "refused": 0}
    assert mqtt_server.payloads() == [b"n%d" % number for number in range(1, 5001)]


def test_lines_of_input(mqtt_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\r\nthree")))
    assert run(["pub", "-p", str(mqtt_server.port), "-t", "a", "--stdin", "--retain"]) == 0
    assert mqtt_server.payloads() == [b"one", b"two", b"three"]
    assert all(kind & 1 for kind, _ in mqtt_server.received if kind >> 4 == 3)
    assert "3 messages acknowledged" in capsys.readouterr().err


def test_without_an_acknowledgement_the_status_says_so(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.acknowledge = False
    assert run(["pub", "-p", str(mqtt_server.port), "-t", "a", "-m", "x", "--timeout", "0.1"]) == 1
    assert "message 1 was not acknowledged within 0.1 s" in capsys.readouterr().err


def test_a_lost_connection_is_reported(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.close_after_publish = True
    assert run(["pub", "-p", str(mqtt_server.port), "-t", "a", "-m", "x"]) == 1
    said = capsys.readouterr().err
    assert "MQTT 3.1.1 gives no reason; likely causes: the access list" in said
    assert "message 1 and later ones are not acknowledged" in said


def test_message_or_input_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pub", "-t", "a"]) == 2
    assert run(["pub", "-t", "a", "-m", "x", "--stdin"]) == 2
    assert "either --message TEXT or --stdin" in capsys.readouterr().err


def test_a_count_below_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pub", "-t", "a", "-m", "x", "--count", "0"]) == 2
    assert "--count must be at least 1, not 0" in capsys.readouterr().err


def test_properties_need_version_5(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pub", "-t", "a", "-m", "x", "--property", "k=v"]) == 2
    assert "add -V 5" in capsys.readouterr().err
    assert run(["pub", "-t", "a", "-m", "x", "-V", "4"]) == 2
    assert "-V must be 3.1.1 or 5, not 4" in capsys.readouterr().err


NOT_AUTHORIZED = bytes((0x87, 0))
QUOTA = bytes((0x97, 10, 0x1F, 0, 7)) + b"too far"


@pytest.mark.parametrize("qos", ["1", "2"])
def test_refused_messages_are_counted_by_reason(mqtt_server: Any, capsys: pytest.CaptureFixture[str], qos: str) -> None:
    mqtt_server.connack_tail = b"\0"
    mqtt_server.puback_codes = {b"2": NOT_AUTHORIZED, b"3": QUOTA, b"4": NOT_AUTHORIZED, b"5": b"\x10\0"}
    arguments = ["pub", "-p", str(mqtt_server.port), "-V", "5", "-q", qos, "-t", "a", "-m", "{n}", "--count", "5"]
    assert run([*arguments, "--json"]) == 1
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said.pop("error") in err
    assert said == {
        "topic": "a",
        "qos": int(qos),
        "acknowledged": 2,
        "no_matching_subscribers": 1,
        "refused": 3,
        "reasons": {"not authorized (0x87)": 2, "quota exceeded (0x97): too far": 1},
    }
    assert "lightmq: the server refused 3 of 5 messages: 2 x not authorized (0x87); 1 x quota exceeded" in err
    released = [body for kind, body in mqtt_server.received if kind >> 4 == 6]
    assert len(released) == (2 if qos == "2" else 0)  # a refused PUBREC gets no PUBREL


def test_an_accepted_message_whose_exchange_fails_is_not_refused(
    mqtt_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """PUBREC accepted it, so it is stored, whatever PUBCOMP says; but the exchange failed."""
    mqtt_server.connack_tail, mqtt_server.pubcomp_tail = b"\0", b"\x92\0"
    arguments = ["pub", "-p", str(mqtt_server.port), "-V", "5", "-q", "2", "-t", "a", "-m", "{n}", "--json"]
    assert run(arguments) == 1
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said.pop("error") in err
    assert said == {
        "topic": "a", "qos": 2, "acknowledged": 1, "refused": 0, "unfinished": 1,
        "reasons": {"packet identifier not found (0x92)": 1},
    }  # fmt: skip
    assert "the server accepted the message but did not complete the exchange: packet identifier not found" in err
    mqtt_server.puback_codes = {b"1": NOT_AUTHORIZED}
    assert run([*arguments, "--count", "3"]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(out)[name] for name in ("acknowledged", "refused", "unfinished")] == [2, 1, 2]
    assert "refused 1 of 3 messages: 1 x not authorized (0x87); the server accepted 2 of 3 messages but did" in err


def test_an_unavailable_server_names_the_likely_causes(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """MQTT 3.1.1 has one code for all of them; MQTT 5 has the reason itself."""
    mqtt_server.connack = 3
    assert run(["pub", "-p", str(mqtt_server.port), "-t", "a", "-m", "x"]) == 1
    assert "server unavailable (0x88); MQTT 3.1.1 gives no reason; likely causes: its disk" in capsys.readouterr().err
    mqtt_server.connack, mqtt_server.connack_tail = 0x88, b"\0"
    assert run(["pub", "-p", str(mqtt_server.port), "-V", "5", "-t", "a", "-m", "x"]) == 1
    assert "likely" not in capsys.readouterr().err


def test_one_refused_message_is_reported_with_its_reason(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.connack_tail = b"\0"
    mqtt_server.puback_codes = {b"x": QUOTA}
    assert run(["pub", "-p", str(mqtt_server.port), "-V", "5", "-t", "a", "-m", "x"]) == 1
    assert capsys.readouterr().err == "lightmq: the server refused the message: quota exceeded (0x97): too far\n"


@pytest.mark.parametrize("qos", ["1", "2"])
def test_no_matching_subscribers_is_reported_as_success(
    mqtt_server: Any, capsys: pytest.CaptureFixture[str], qos: str
) -> None:
    mqtt_server.connack_tail = b"\0"
    mqtt_server.puback_codes = {b"1": b"\x10", b"3": b"\x10\0"}
    arguments = ["pub", "-p", str(mqtt_server.port), "-V", "5", "-q", qos, "-t", "a/b"]
    said = "there is no subscription to a/b: no matching subscribers (0x10)\n"
    assert run([*arguments, "-m", "1"]) == 0
    assert capsys.readouterr().err == f"the server accepted the message, but {said}"
    assert run([*arguments, "-m", "{n}", "--count", "3"]) == 0
    assert capsys.readouterr().err == f"3 messages acknowledged\nthe server accepted 2 messages, but {said}"
    assert run([*arguments, "-m", "2"]) == 0
    assert capsys.readouterr().err == ""


def test_a_disconnect_of_the_server_is_reported_in_words(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mqtt_server.connack_tail = b"\0"
    mqtt_server.disconnect_with = b"\x8e\0"
    assert run(["pub", "-p", str(mqtt_server.port), "-V", "5", "-t", "a", "-m", "x", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "the server ended the connection: session taken over (0x8e); message 1" in err
    said = json.loads(out)
    assert (said["acknowledged"], said["refused"], said["unanswered"]) == (0, 0, 1)
    mqtt_server.disconnect_with = b"\0\0"  # "normal disconnection" is no acknowledgement either
    assert run(["pub", "-p", str(mqtt_server.port), "-V", "5", "-t", "a", "-m", "x"]) == 1
    assert "normal disconnection (0x00)" in capsys.readouterr().err


def test_qos_0_is_sent_and_not_acknowledged(mqtt_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["pub", "-p", str(mqtt_server.port), "-q", "0", "-t", "a", "-m", "x", "--count", "3"]
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"topic": "a", "qos": 0, "sent": 3}
    assert run(arguments) == 0
    assert capsys.readouterr().err == "3 messages sent\n"
    mqtt_server.close_after_publish = True
    assert run(arguments) == 1
    assert "likely causes" in capsys.readouterr().err


def test_the_number_of_counted_reasons_is_bounded() -> None:
    outcome = PublishCounts("a", 1, sent=1)
    for number in range(REASONS_MAX + 5):
        outcome.refuse(f"reason {number}", too_late=False)
    outcome.settled = REASONS_MAX + 5
    assert len(outcome.refused) == REASONS_MAX + 1
    assert outcome.report()["reasons"][OTHER_REASONS] == 5


def test_a_message_that_found_no_connection_is_not_published() -> None:
    """paho itself raises an error without the cause."""
    info = MQTTMessageInfo(1)
    info.rc = MQTTErrorCode.MQTT_ERR_NO_CONN
    assert not _is_published(info)
