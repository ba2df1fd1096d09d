"""What a server says to people once it is ready: its ports and the first things to try.

Invariant: every command printed here works as it stands, with the ports that are really open.
"""

from __future__ import annotations

from collections.abc import Mapping


def up_greeting(ports: Mapping[str, int], data: str) -> str:
    """The text of ``lightmq up``."""
    mqtt, remoting, admin = ports["mqtt"], ports["remoting"], ports["admin"]
    port = "" if mqtt == 1883 else f" -p {mqtt}"
    server = "" if remoting == 9876 else f" --server 127.0.0.1:{remoting}"
    return f"""\
LightMQ is ready; data in {data}
  MQTT      127.0.0.1:{mqtt}
  remoting  127.0.0.1:{remoting}   (RocketMQ clients and Spark: name server and broker)
  admin     http://127.0.0.1:{admin}/status   /metrics   /readyz

Try it in two other terminals:
  lightmq sub{port} -t 'plant/#' -v
  lightmq pub{port} -t plant/7/temp -m '{{"celsius": 21.5}}'
  lightmq tail 'plant/#'{server}

From Spark:
  from lightmq.spark import session
  spark = session()
  rows = (spark.readStream.format("rocketmq")
          .option("nameServer", "127.0.0.1:{remoting}")
          .option("mqttFilter", "plant/#").load())

Ctrl-C stops it."""


def part_greeting(part: str, ports: Mapping[str, int]) -> str:
    """The text of a server that is a process of its own."""
    said = ", ".join(f"{name} port {port}" for name, port in ports.items())
    return f"lightmq {part} is ready: {said}. Ctrl-C stops it."
