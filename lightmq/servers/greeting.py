"""What a server prints when it is ready: its ports and the first things to try.

Invariant: every command printed here works as it stands, with the ports that are really open.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from broker.config import BrokerConfig
from broker.replication.leader import promise
from broker.roles.durability import rule_of
from lightmq.configuration import UpConfig
from mqtt_proxy.config import ProxyConfig

ALONE = BrokerConfig()


def who_gets_in(proxy: ProxyConfig) -> str:
    """Whose MQTT clients are served, and how to change it."""
    host = proxy.listen_host
    if proxy.proves_names:
        proof = "a user of the password file" if proxy.password_file is not None else "a proven name"
        others = "only this machine" if is_loopback(host) else f"other machines with {proof}"
        return f"listening on {host}: {others}"
    if is_loopback(host):
        return "only this machine; --password-file FILE lets others in"
    return f"listening on {host}, but other machines are refused: there is no --password-file"


def client_host(host: str) -> str:
    """The address by which a client on this machine reaches a listening address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, never bound to


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listening address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def durability(broker: BrokerConfig) -> str:
    """What an acknowledgement of this broker means, and why the configuration cannot keep it."""
    found = promise(rule_of(broker))
    return f"{found.text}\n  warning: {found.warning}" if found.warning else found.text


def up_greeting(ports: Mapping[str, int], up: UpConfig, proxy: ProxyConfig, broker: BrokerConfig = ALONE) -> str:
    """The text of ``lightmq up``."""
    mqtt, remoting, admin = ports["mqtt"], ports["remoting"], ports["admin"]
    host, here = client_host(proxy.listen_host), client_host(up.host)
    port = ("" if host == "127.0.0.1" else f" --host {host}") + ("" if mqtt == 1883 else f" -p {mqtt}")
    server = "" if (here, remoting) == ("127.0.0.1", 9876) else f" --server {here}:{remoting}"
    return f"""\
LightMQ is ready; data in {up.data_directory}
  MQTT      {host}:{mqtt}   ({who_gets_in(proxy)}){_further(host, ports, proxy)}
  remoting  {here}:{remoting}   (RocketMQ clients and Spark: name server and broker)
  admin     http://{here}:{admin}/status   /metrics   /readyz
  {durability(broker)}

Try it in two other terminals:
  lightmq sub{port} -t 'plant/#' -v
  lightmq pub{port} -t plant/7/temp -m '{{"celsius": 21.5}}'
  lightmq tail 'plant/#'{server}

From Spark:
  from lightmq.spark import session
  spark = session()
  rows = (spark.readStream.format("rocketmq")
          .option("nameServer", "{here}:{remoting}")
          .option("mqttFilter", "plant/#").load())

Ctrl-C stops it."""


def _further(host: str, ports: Mapping[str, int], proxy: ProxyConfig) -> str:
    """Lines for the other MQTT listeners that are open."""
    kinds = {
        "mqtt-tls": ("MQTTS     ", "", "TLS"),
        "mqtt-ws": ("WebSocket ws://", proxy.listen.ws_path, "no TLS"),
        "mqtt-wss": ("WebSocket wss://", proxy.listen.ws_path, "TLS"),
    }
    lines = [
        f"\n  {head}{host}:{ports[name]}{path}   ({what})"
        for name, (head, path, what) in kinds.items()
        if name in ports
    ]
    return "".join(lines)


def part_greeting(part: str, ports: Mapping[str, int]) -> str:
    """The text of a server that is a process of its own."""
    said = ", ".join(f"{name} port {port}" for name, port in ports.items())
    return f"lightmq {part} is ready: {said}. Ctrl-C stops it."
