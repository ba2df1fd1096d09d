"""Where the tree is and which packages it ships."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "broker",
    "console",
    "controller",
    "grpc_proxy",
    "lightmq",
    "mqtt_bridge",
    "mqtt_proxy",
    "pyspark_rocketmq",
    "remoting",
    "runtime",
    "spark_connector",
)


def relative(path: Path) -> str:
    """Name of a path for messages."""
    return str(path.relative_to(ROOT))
