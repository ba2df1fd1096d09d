"""Everything that can be configured, as one tree: the sections of ``lightmq.toml``.

One file serves every command: ``lightmq up`` reads all of it, ``lightmq broker`` checks all of it and uses
``[broker]``, so that the same file later drives separate processes. Invariant: a key is declared in exactly one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broker.config import BrokerConfig
from console.config import ConsoleConfig
from controller.config import ControllerConfig
from grpc_proxy.config import GrpcConfig
from mqtt_bridge.config import BridgeConfig
from mqtt_proxy.config import ProxyConfig
from runtime.config import Flag, Loaded, load, setting
from runtime.tracing_config import TracingConfig


@dataclass(frozen=True, kw_only=True)
class UpConfig:
    """`lightmq up`: everything in one process. What is set here replaces the parts' own addresses and ports."""

    data_directory: Path = Path("lightmq-data")
    """Where everything durable lies: the log in `broker/`, the cluster's metadata in `controller/`."""
    host: str = "127.0.0.1"
    """Address of the remoting and the administration port. The MQTT address is `proxy.host`."""
    remoting_port: int = setting(9876, minimum=0, maximum=65_535)
    """One port for RocketMQ clients and Spark that answers as name server and as broker; 0 takes any free one."""
    grpc_port: int | None = setting(None, minimum=0, maximum=65_535)
    """Port for RocketMQ's gRPC clients, usually 8081; 0 takes any free one, unset: no port is opened. The address and
    everything else is set in `[grpc]`; the extra `grpc` must be installed."""
    admin_port: int = setting(8080, minimum=0, maximum=65_535)
    """Port of the console, /metrics, /livez, /readyz and /status; 0 takes any free one."""
    admin_hosts: tuple[str, ...] = ()
    """Further host names under which the administration port answers, beside `localhost` and IP addresses."""


@dataclass(frozen=True, kw_only=True)
class LogsConfig:
    """What a server writes to standard error."""

    level: str = setting("info", choices=("debug", "info", "warning", "error"))
    """The least important line that is written."""
    json: bool = False
    """One JSON object per line instead of key=value pairs."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The whole configuration of an installation."""

    up: UpConfig = field(default_factory=UpConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    bridge: BridgeConfig = field(default_factory=BridgeConfig)
    grpc: GrpcConfig = field(default_factory=GrpcConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    logs: LogsConfig = field(default_factory=LogsConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)


def load_configuration(
    file: Path | None, environ: Mapping[str, str], flags: Iterable[Flag] = ()
) -> Loaded[Configuration]:
    """The configuration in force. Raises ConfigError."""
    return load(Configuration, file=file, environ=environ, flags=flags)
