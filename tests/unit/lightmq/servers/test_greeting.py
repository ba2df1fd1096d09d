from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import BrokerConfig, ReplicationConfig
from broker.store.settings import StoreSettings
from console.config import ConsoleConfig
from lightmq.configuration import UpConfig
from lightmq.servers.serving import durability, is_loopback, off_terminal, part_greeting, up_greeting, who_gets_in
from mqtt_proxy.config import ListenConfig, ProxyConfig

LOCAL = ProxyConfig()


def test_the_usual_ports_need_no_options() -> None:
    text = up_greeting({"mqtt": 1883, "remoting": 9876, "admin": 8080}, UpConfig(), LOCAL)
    assert "lightmq pub -t plant/7/temp" in text
    assert "lightmq tail 'plant/#'\n" in text
    assert '.option("nameServer", "127.0.0.1:9876")' in text


def test_the_promise_of_the_configuration_is_there() -> None:
    ports = {"mqtt": 1883, "remoting": 9876, "admin": 8080}
    assert "\n  acknowledged = on one disk; " in up_greeting(ports, UpConfig(), LOCAL)
    in_memory = BrokerConfig(store=StoreSettings(flush="async"))
    assert "acknowledged = in the memory of one machine" in up_greeting(ports, UpConfig(), LOCAL, in_memory)
    member = BrokerConfig(replication=ReplicationConfig(enabled=True, acknowledge="async"))
    assert "master alone\n  warning: the newest acknowledged messages are lost with the master" in durability(member)


def test_other_ports_appear_in_every_command() -> None:
    text = up_greeting({"mqtt": 1, "remoting": 2, "admin": 3}, UpConfig(), LOCAL)
    assert "lightmq sub -p 1 -t" in text
    assert "--server 127.0.0.1:2" in text
    assert "http://127.0.0.1:3/status" in text


def test_further_listeners_are_named_with_how_to_reach_them() -> None:
    ports = {"mqtt": 1883, "remoting": 9876, "admin": 8080}
    assert "WebSocket" not in up_greeting(ports, UpConfig(), LOCAL)
    text = up_greeting(ports | {"mqtt-tls": 8883, "mqtt-ws": 9001, "mqtt-wss": 8884}, UpConfig(), LOCAL)
    assert "\n  MQTTS     127.0.0.1:8883   (TLS; only this machine; --password-file FILE lets others in)\n" in text
    assert "wss://127.0.0.1:8884/mqtt   (TLS; only this machine; --password-file FILE lets others in)\n" in text
    assert "ws://127.0.0.1:9001/mqtt " in text
    assert "wss://127.0.0.1:8884/mqtt " in text


def test_options_of_the_snippet_exist() -> None:
    from spark_connector.options.read_write import ReadOptions

    assert {"name_server", "mqtt_filter"} <= set(ReadOptions.__dataclass_fields__)


def test_a_part_prints_its_ports() -> None:
    assert part_greeting("broker", {"remoting": 1, "admin": 2}).startswith(
        "lightmq broker is ready: remoting port 1, admin port 2"
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ProxyConfig(), "only this machine; --password-file FILE and proxy.host let others in"),
        (ProxyConfig(password_file=Path("p")), "listening on 127.0.0.1: only this machine; proxy.host lets others in"),
        (
            ProxyConfig(host="0.0.0.0", password_file=Path("p")),
            "other machines with a user of the password file, whose passwords cross the network in the clear",
        ),
        (ProxyConfig(host="::1", password_file=Path("p")), "listening on ::1: only this machine"),
        (ProxyConfig(host="0.0.0.0"), "other machines are refused: there is no --password-file"),
    ],
)
def test_it_says_which_clients_are_admitted(config: ProxyConfig, expected: str) -> None:
    assert expected in who_gets_in(config)
    assert expected in up_greeting({"mqtt": 1883, "remoting": 9876, "admin": 8080}, UpConfig(), config)


def test_each_kind_of_listener_says_who_gets_in() -> None:
    """A password file lets users of other machines in by TLS, while the plain listener stays on loopback."""
    listen = ListenConfig(tls_port=8883, tls_certificate=Path("c"), tls_key=Path("k"))
    config = ProxyConfig(port=1883, password_file=Path("p"), listen=listen)
    ports = {"mqtt": 1883, "mqtt-tls": 8883, "remoting": 9876, "admin": 8080}
    said = up_greeting(ports, UpConfig(), config)
    assert "MQTT      127.0.0.1:1883   (listening on 127.0.0.1: only this machine" in said
    tls = "(TLS; listening on 0.0.0.0: other machines with a user of the password file)"
    assert f"MQTTS     127.0.0.1:8883   {tls}" in said
    assert "lightmq pub -t" in said
    del ports["mqtt"]
    assert "lightmq pub" not in up_greeting(ports, UpConfig(), ProxyConfig(password_file=Path("p"), listen=listen))


def test_the_commands_reach_the_listener() -> None:
    ports = {"mqtt": 1883, "remoting": 9876, "admin": 8080}
    assert "lightmq pub --host ::1 -t" in up_greeting(ports, UpConfig(), ProxyConfig(host="::1"))
    assert "lightmq pub -t" in up_greeting(ports, UpConfig(), ProxyConfig(host="0.0.0.0"))
    elsewhere = up_greeting(ports, UpConfig(host="10.0.0.7"), LOCAL)
    assert "--server 10.0.0.7:9876" in elsewhere
    assert "http://10.0.0.7:8080/status" in elsewhere
    assert up_greeting(ports, UpConfig(host="0.0.0.0"), LOCAL) == up_greeting(ports, UpConfig(), LOCAL)


def test_what_is_loopback() -> None:
    assert [host for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org") if is_loopback(host)] == [
        "127.0.0.1",
        "::1",
        "localhost",
    ]


def test_a_token_is_printed_on_terminals_alone(tmp_path: Path) -> None:
    """Elsewhere it would stay in a journal; a file that only its owner can read has it, and the text names the file."""
    notes = {"console_token": "lmq_x", "other": "note"}
    assert off_terminal(notes, tmp_path, is_terminal=True) is notes
    assert not list(tmp_path.iterdir())
    shown = off_terminal(notes, tmp_path, is_terminal=False)
    path = tmp_path / "console-token"
    assert shown == {"other": "note", "console_token_file": str(path)}
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("lmq_x\n", 0o600)
    ports = {"mqtt": 1883, "remoting": 9876, "admin": 8080}
    said = up_greeting(ports, UpConfig(), LOCAL, console=ConsoleConfig(), notes=shown)
    assert "lmq_x" not in said
    assert f"the token in {path}, for you alone" in said
    assert off_terminal({}, tmp_path, is_terminal=False) == {}


def test_a_part_says_where_its_console_token_is() -> None:
    """On a terminal the token itself; later starts and parts without a console say nothing of it."""
    assert part_greeting("broker", {"remoting": 1}, {"console_token": "lmq_x"}).endswith("lmq_x, shown only this once.")
    assert part_greeting("broker", {}, {"console_token_file": "/d/f"}).endswith("token is in /d/f, for you alone.")
    assert "token" not in part_greeting("broker", {"remoting": 1})


def test_every_open_port_is_said() -> None:
    """The one for old RocketMQ clients, too, which is two below the remoting port."""
    ports = {"mqtt": 1883, "remoting": 9876, "admin": 8080}
    assert "VIP       127.0.0.1:9874" in up_greeting({**ports, "vip": 9874}, UpConfig(), LOCAL)
    assert "VIP" not in up_greeting(ports, UpConfig(), LOCAL)


def test_the_first_start_shows_a_link_that_signs_in() -> None:
    """Later ones say how to get another token; without a console there is no line."""
    ports = {"mqtt": 1883, "remoting": 9876, "admin": 8080}
    first = up_greeting(ports, UpConfig(), LOCAL, console=ConsoleConfig(), notes={"console_token": "lmq_x"})
    assert "http://127.0.0.1:8080/console/#token=lmq_x\n" in first
    later = up_greeting(ports, UpConfig(data_directory=Path("d")), LOCAL, console=ConsoleConfig())
    assert "http://127.0.0.1:8080/console/   (new token: lightmq console token --renew --data d)" in later
    assert "console" not in up_greeting(ports, UpConfig(), LOCAL, console=ConsoleConfig(enabled=False))
