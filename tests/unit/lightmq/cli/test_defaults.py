"""Option, environment variable, profile, default: in this order, on the real parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightmq.cli.application import application
from lightmq.cli.connections import ServerTarget
from lightmq.cli.defaults import mqtt_address
from lightmq.cli.messages.mqtt_client import MqttTarget
from remoting.protocol.errors import LocalMisuse

FILE = """
use = "plant"
[profiles.plant]
server = "plant:9876,second:9876"
key = "reader:from-profile"
tls = true
mqtt = "mqtt.plant:8883"
mqtt_tls = true
user = "ann"
password = "of-ann"
[profiles.office]
server = "office:9876"
"""


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profiles.toml"
    file.write_text(FILE)
    file.chmod(0o600)
    monkeypatch.setenv("LIGHTMQ_PROFILES", str(file))
    for name in ("LIGHTMQ_SERVER", "LIGHTMQ_KEY", "LIGHTMQ_PROFILE", "LIGHTMQ_USER", "LIGHTMQ_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


def target(*words: str) -> Any:
    """The target of a command as its function would get it."""
    _, bound, _ = application().parse_args(list(words), exit_on_error=False, print_error=False)
    kind = MqttTarget if words[0] in ("pub", "sub") else ServerTarget
    return bound.arguments.get("target", kind())


def test_remoting(monkeypatch: pytest.MonkeyPatch) -> None:
    used = target("topics")
    assert (used.server, used.security.tls, used.security.signer.access_key) == (
        "plant:9876,second:9876", True, "reader",
    )  # fmt: skip
    assert target("topics", "--profile", "office").server == "office:9876"
    monkeypatch.setenv("LIGHTMQ_PROFILE", "office")
    assert target("cluster", "status").server == "office:9876"
    monkeypatch.setenv("LIGHTMQ_SERVER", "variable:1")
    assert target("topics").server == "variable:1"
    assert target("topics", "--server", "option:1").server == "option:1"


def test_a_key_given_otherwise_keeps_the_profile_s_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTMQ_KEY", "writer:from-variable")
    assert target("topics").security.signer.access_key == "writer"
    file = tmp_path / "key"
    file.write_text("third:from-file\n")
    file.chmod(0o600)
    assert target("topics", "--access-key-file", str(file)).security.signer.access_key == "third"
    monkeypatch.setenv("LIGHTMQ_KEY", "no secret in it")
    with pytest.raises(LocalMisuse, match="LIGHTMQ_KEY") as caught:
        target("topics").security.signer  # noqa: B018  # the property raises
    assert "no secret" not in str(caught.value)


def test_mqtt(monkeypatch: pytest.MonkeyPatch) -> None:
    used = target("pub", "-t", "a", "-m", "x")
    assert (used.host, used.port, used.tls, used.user, used.password) == ("mqtt.plant", 8883, True, "ann", "of-ann")
    other = target("pub", "-t", "a", "-m", "x", "--user", "bob", "--host", "there")
    assert (other.host, other.port, other.user, other.password) == ("there", 1883, "bob", "")
    office = target("sub", "-t", "a", "--profile", "office")
    assert (office.host, office.port, office.user) == ("office", 1883, None)
    monkeypatch.setenv("LIGHTMQ_MQTT_HOST", "variable")
    assert target("pub", "-t", "a", "-m", "x").host == "variable"
    assert "of-ann" not in repr(used)


def test_the_filter_of_a_listing_is_no_identity() -> None:
    """`clients --user` selects; the profile's user is not put there."""
    _, bound, _ = application().parse_args(["clients"], exit_on_error=False, print_error=False)
    assert "user" not in bound.arguments


def test_an_unknown_profile_is_an_error() -> None:
    with pytest.raises(LocalMisuse, match="did you mean plant"):
        target("topics", "--profile", "plnt")


def test_no_profile_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTMQ_PROFILES", str(tmp_path / "none"))
    assert target("topics").server == "127.0.0.1:9876"
    assert target("pub", "-t", "a", "-m", "x").host == "127.0.0.1"


def test_addresses() -> None:
    assert mqtt_address("h:1", "s:2") == ("h", "1")
    assert mqtt_address("[::1]:1", "") == ("[::1]", "1")
    assert mqtt_address("h", "") == ("h", "")
    assert mqtt_address("", "s:2,t:3") == ("s", "")
    assert mqtt_address("", "") == ("", "")
