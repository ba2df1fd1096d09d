"""``lightmq up``, ``broker``, ``controller``, ``proxy``, ``grpc-proxy`` and ``bridge``: run servers until a signal.

Invariant: what can be known to be wrong (configuration, ports, the password file) is reported before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from lightmq.cli.options import ConfigOptions, configuration
from lightmq.cli.outcome import CommandFailed, CommandMisused
from lightmq.configuration import Configuration
from lightmq.extras import install_command
from lightmq.servers.serving import (
    Server,
    check_free,
    durability,
    part_greeting,
    prepare,
    serve,
    up_greeting,
    who_gets_in,
)
from mqtt_proxy.config import ProxyConfig
from remoting.protocol.errors import LocalMisuse
from runtime.config import Flag

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from controller.config import ControllerConfig
    from grpc_proxy.config import GrpcConfig
    from mqtt_bridge.config import BridgeConfig

Ports = Mapping[str, int]
Notes = Mapping[str, str]
"""Open ports by protocol."""
NONE = ConfigOptions()

Data = Annotated[Path | None, Parameter(name=["--data", "-d"], help="Data directory.")]
MqttPort = Annotated[int | None, Parameter(name=["--mqtt-port"], help="MQTT port; 0: any free one.")]
RemotingPort = Annotated[int | None, Parameter(name=["--remoting-port"], help="Remoting port; 0: any free one.")]
AdminPort = Annotated[int | None, Parameter(name=["--admin-port"], help="Administration port; 0: any free one.")]
GrpcPort = Annotated[int | None, Parameter(name=["--grpc-port"], help="Port for gRPC clients; 0: any free one.")]
Json = Annotated[bool, Parameter(name=["--json"], negative=(), help="Print the ports as one JSON line once ready.")]
Passwords = Annotated[Path | None, Parameter(name=["--password-file"], help="MQTT users; see lightmq passwd.")]
TlsPort = Annotated[int | None, Parameter(name=["--tls-port"], help="MQTT over TLS; 0: any free one.")]
WsPort = Annotated[int | None, Parameter(name=["--ws-port"], help="MQTT over WebSocket; 0: any free one.")]
WssPort = Annotated[int | None, Parameter(name=["--wss-port"], help="MQTT over WebSocket and TLS; 0: any free one.")]
TlsCertificate = Annotated[Path | None, Parameter(name=["--tls-certificate"], help="PEM file; needed with TLS.")]
TlsKey = Annotated[Path | None, Parameter(name=["--tls-key"], help="PEM file of the certificate's key.")]
Acl = Annotated[Path | None, Parameter(name=["--acl-file"], help="Who may read and write what; see lightmq acl.")]
Readers = Annotated[int | None, Parameter(name=["--readers"], help="Reader processes for Spark; 0: none.")]
Controllers = Annotated[str | None, Parameter(name=["--controllers"], help="host:port of controllers, with commas.")]


Proxies = Annotated[int | None, Parameter(name=["--proxies"], help="MQTT proxy processes on the same ports.")]
Supervised = Annotated[bool, Parameter(name=["--supervised"], negative=(), show=False)]
OPTIONS = {
    "tls_port": "--tls-port",
    "ws_port": "--ws-port",
    "wss_port": "--wss-port",
    "tls_certificate": "--tls-certificate",
    "tls_key": "--tls-key",
    "processes": "--proxies",
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """MQTT listeners besides the plain one."""

    tls_port: TlsPort = None
    ws_port: WsPort = None
    wss_port: WssPort = None
    tls_certificate: TlsCertificate = None
    tls_key: TlsKey = None
    processes: Proxies = None

    def flags(self) -> list[Flag]:
        """The options that were given, as configuration keys."""
        return [
            Flag(f"proxy.listen.{each.name}", OPTIONS[each.name], getattr(self, each.name)) for each in fields(self)
        ]


NO_LISTENERS = ListenOptions()


def check_mqtt_ports(config: ProxyConfig) -> None:
    """Raise PortTaken when an MQTT port cannot be listened on; one that is shared can."""
    listen = config.listen
    if listen.reuse_port:
        return
    for host, port, option in (
        (config.plain_host, config.plain_port, "--mqtt-port"),
        (config.listen_host, listen.tls_port, "--tls-port"),
        (config.plain_host, listen.ws_port, "--ws-port"),
        (config.listen_host, listen.wss_port, "--wss-port"),
    ):
        if port is not None:
            check_free(host, port, option)


def check_users(config: ProxyConfig) -> None:
    """Raise PasswordFileError when there is a password file that a proxy would not use."""
    if config.password_file is not None:
        from mqtt_proxy.access.password_method import load

        load(config.password_file)


def check_grpc() -> None:
    """Raise CommandFailed when the packages that gRPC needs are not installed."""
    try:
        import grpc_proxy.stubs  # noqa: F401
    except (ImportError, LocalMisuse) as error:
        raise CommandFailed(f"gRPC needs further packages; install them with: {install_command('grpc')}") from error


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What one command starts, and what can be known to be wrong before it does."""

    section: str
    """Where in the configuration its options are."""
    ports: Callable[[Configuration], Sequence[tuple[str, int, str]]]
    """(host, port, option) of what must be free, beside the ports of MQTT."""
    make: Callable[[Configuration], Server]
    """Builds the server, inside its loop."""
    greeting: Callable[[Configuration, Ports, Notes], str]
    is_mqtt: bool = False
    """Whether it listens to MQTT clients."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Parameters whose key has another name or section than PARAMETERS says."""

    def flag(self, parameter: str, value: object) -> Flag:
        """What was given for one parameter."""
        option, key = PARAMETERS[parameter]
        return Flag(self.elsewhere.get(parameter, f"{self.section}.{key}"), option, value)


PARAMETERS = {
    "data": ("--data", "data_directory"),
    "mqtt_port": ("--mqtt-port", "port"),
    "remoting_port": ("--remoting-port", "port"),
    "grpc_port": ("--grpc-port", "port"),
    "admin_port": ("--admin-port", "admin_port"),
    "controllers": ("--controllers", "controllers"),
    "broker_address": ("--broker", "broker"),
    "password_file": ("--password-file", "password_file"),
    "acl_file": ("--acl-file", "acl_file"),
    "readers": ("--readers", "range_readers"),
}
"""Parameter of a command → its option, and the key that it sets in the command's section."""


def _all_in_one(config: Configuration) -> Server:
    from lightmq.servers.all_in_one import AllInOne

    return AllInOne(config)


def _parts() -> ModuleType:
    """Imported when a server is built: mistakes in its options are reported sooner without it."""
    from lightmq.servers import parts

    return parts


def _proxy(config: Configuration) -> Server:
    proxy, parts = config.proxy, _parts()
    if proxy.listen.processes > 1:
        pool: Server = parts.proxies_part(proxy, config.logs, config.console, config.tracing)
        return pool
    made: Server = parts.proxy_part(proxy, config.console, config.tracing)
    return made


def _admin(config: BrokerConfig | ControllerConfig | ProxyConfig | BridgeConfig | GrpcConfig) -> tuple[str, int, str]:
    return config.admin_host, config.admin_port, "--admin-port"


def _grpc(config: Configuration, port: int) -> tuple[str, int, str]:
    """The port for gRPC clients; one that proxies share need not be free."""
    return config.grpc.host, 0 if config.grpc.reuse_port else port, "--grpc-port"


UP = ServerCommand(
    "up",
    ports=lambda config: (
        (config.up.host, config.up.remoting_port, "--remoting-port"),
        (config.up.host, config.up.admin_port, "--admin-port"),
        _grpc(config, config.up.grpc_port or 0),
    ),
    make=_all_in_one,
    greeting=lambda config, ports, notes: up_greeting(
        ports, config.up, config.proxy, config.broker, console=config.console, notes=notes
    ),
    is_mqtt=True,
    elsewhere={
        "mqtt_port": "proxy.port",
        "remoting_port": "up.remoting_port",
        "grpc_port": "up.grpc_port",
        "password_file": "proxy.password_file",
        "acl_file": "proxy.acl_file",
        "readers": "broker.range_readers",
    },
)
REPLACED = {
    f"{part}.{name}": f"up.{by}"
    for parts, names in (
        (
            ("broker", "controller", "proxy", "bridge", "grpc"),
            {"admin_host": "host", "admin_port": "admin_port", "admin_hosts": "admin_hosts"},
        ),
        (("broker", "controller"), {"host": "host", "port": "remoting_port", "data_directory": "data_directory"}),
        (("grpc",), {"port": "grpc_port"}),
    )
    for part in parts
    for name, by in names.items()
}
"""Keys of the parts that `lightmq up` does not look at, and the key that it has instead."""


def _check_effect(options: ConfigOptions) -> None:
    """Raises CommandMisused for `lightmq up --set` of a key that a part alone looks at; a file serves all commands."""
    for text in options.values:
        key = text.partition("=")[0].strip()
        if key in REPLACED:
            raise CommandMisused(f"--set {key} has no effect on `lightmq up`: set {REPLACED[key]}")


BROKER = ServerCommand(
    "broker",
    ports=lambda config: ((config.broker.host, config.broker.port, "--remoting-port"), _admin(config.broker)),
    make=lambda config: _parts().broker_part(config.broker, config.console, config.tracing),
    greeting=lambda config, ports, notes: f"{part_greeting('broker', ports, notes)}\n{durability(config.broker)}",
)
CONTROLLER = ServerCommand(
    "controller",
    ports=lambda config: (
        (config.controller.host, config.controller.port, "--remoting-port"),
        _admin(config.controller),
    ),
    make=lambda config: _parts().controller_part(config.controller, config.console),
    greeting=lambda _, ports, notes: part_greeting("controller", ports, notes),
)


def _who_gets_in(proxy: ProxyConfig) -> str:
    """Of the plain listeners, or of those with TLS where there are no others."""
    return who_gets_in(proxy, is_encrypted=(proxy.plain_port, proxy.listen.ws_port) == (None, None))


PROXY = ServerCommand(
    "proxy",
    ports=lambda config: (_admin(config.proxy),),
    make=_proxy,
    greeting=lambda config, ports, _: f"{part_greeting('proxy', ports)}\nMQTT: {_who_gets_in(config.proxy)}.",
    is_mqtt=True,
)
GRPC = ServerCommand(
    "grpc",
    ports=lambda config: (_grpc(config, config.grpc.port), _admin(config.grpc)),
    make=lambda config: _parts().grpc_part(config.grpc, config.console),
    greeting=lambda _, ports, __: part_greeting("grpc-proxy", ports),
)
BRIDGE = ServerCommand(
    "bridge",
    ports=lambda config: (_admin(config.bridge),),
    make=lambda config: _parts().bridge_part(config.bridge, config.console),
    greeting=lambda _, ports, __: part_greeting("bridge", ports),
)


def _start(
    command: ServerCommand,
    options: ConfigOptions,
    *,
    json_output: bool,
    listen: ListenOptions = NO_LISTENERS,
    supervised: bool = False,
    **given: object,
) -> None:
    """Check what can be checked, then run the server until a signal; ``given`` are the parameters of PARAMETERS."""
    if command is UP:
        _check_effect(options)
    flags = [command.flag(name, value) for name, value in given.items()]
    config = configuration(options, [*flags, *listen.flags()]).value
    if command is BRIDGE and not config.bridge.connections:
        raise CommandFailed("no bridge is configured: put [[bridge.connections]] into the file given with --config")
    if command is GRPC or (command is UP and config.up.grpc_port is not None):
        check_grpc()
    if command.is_mqtt:
        check_mqtt_ports(config.proxy)
    for host, port, option in command.ports(config):
        check_free(host, port, option)
    if command.is_mqtt:
        check_users(config.proxy)
    directory = getattr(config, command.section).data_directory if "data" in given else None
    if directory is not None:
        prepare(directory, "--data")
    serve(
        lambda: command.make(config),
        supervised=supervised,
        settings=config.logs,
        json_output=json_output,
        greeting=lambda ports, notes: command.greeting(config, ports, notes),
        directory=directory,
    )


def up(
    *,
    data: Data = None,
    mqtt_port: MqttPort = None,
    remoting_port: RemotingPort = None,
    grpc_port: GrpcPort = None,
    admin_port: AdminPort = None,
    password_file: Passwords = None,
    acl_file: Acl = None,
    readers: Readers = None,
    json_output: Json = False,
    listen: ListenOptions = NO_LISTENERS,
    options: ConfigOptions = NONE,
) -> None:
    """Start controller, broker and MQTT proxy in one process, with durable storage."""
    _start(
        UP,
        options,
        json_output=json_output,
        listen=listen,
        data=data,
        mqtt_port=mqtt_port,
        remoting_port=remoting_port,
        grpc_port=grpc_port,
        admin_port=admin_port,
        password_file=password_file,
        acl_file=acl_file,
        readers=readers,
    )


def broker(
    *,
    data: Data = None,
    remoting_port: RemotingPort = None,
    admin_port: AdminPort = None,
    controllers: Controllers = None,
    readers: Readers = None,
    json_output: Json = False,
    options: ConfigOptions = NONE,
) -> None:
    """Start a broker as a separate process."""
    _start(
        BROKER,
        options,
        json_output=json_output,
        data=data,
        remoting_port=remoting_port,
        admin_port=admin_port,
        controllers=controllers,
        readers=readers,
    )


def controller(
    *,
    data: Data = None,
    remoting_port: RemotingPort = None,
    admin_port: AdminPort = None,
    json_output: Json = False,
    options: ConfigOptions = NONE,
) -> None:
    """Start a controller, which is also the name server, as a separate process."""
    _start(CONTROLLER, options, json_output=json_output, data=data, remoting_port=remoting_port, admin_port=admin_port)


def proxy(
    *,
    mqtt_port: MqttPort = None,
    admin_port: AdminPort = None,
    controllers: Controllers = None,
    broker_address: Annotated[str | None, Parameter(name=["--broker"], help="host:port of the broker.")] = None,
    password_file: Passwords = None,
    acl_file: Acl = None,
    json_output: Json = False,
    listen: ListenOptions = NO_LISTENERS,
    supervised: Supervised = False,
    options: ConfigOptions = NONE,
) -> None:
    """Start an MQTT proxy as a separate process, or several on the same ports."""
    _start(
        PROXY,
        options,
        json_output=json_output,
        listen=listen,
        supervised=supervised,
        mqtt_port=mqtt_port,
        admin_port=admin_port,
        controllers=controllers,
        broker_address=broker_address,
        password_file=password_file,
        acl_file=acl_file,
    )


def grpc_proxy(
    *,
    grpc_port: GrpcPort = None,
    admin_port: AdminPort = None,
    controllers: Controllers = None,
    broker_address: Annotated[str | None, Parameter(name=["--broker"], help="host:port of the broker.")] = None,
    json_output: Json = False,
    options: ConfigOptions = NONE,
) -> None:
    """Start a proxy for RocketMQ's gRPC clients, as a separate process."""
    _start(
        GRPC,
        options,
        json_output=json_output,
        grpc_port=grpc_port,
        admin_port=admin_port,
        controllers=controllers,
        broker_address=broker_address,
    )


def bridge(
    *,
    admin_port: AdminPort = None,
    controllers: Controllers = None,
    broker_address: Annotated[str | None, Parameter(name=["--broker"], help="host:port of the broker.")] = None,
    json_output: Json = False,
    options: ConfigOptions = NONE,
) -> None:
    """Start a bridge to the MQTT brokers of the configuration's [[bridge.connections]], as a separate process."""
    _start(
        BRIDGE,
        options,
        json_output=json_output,
        admin_port=admin_port,
        controllers=controllers,
        broker_address=broker_address,
    )
