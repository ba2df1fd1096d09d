"""``lightmq up``, ``broker``, ``controller``, ``proxy`` and ``bridge``: run servers until a signal.

Invariant: what can be known to be wrong (configuration, ports, the password file) is told before anything is started.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.options import ConfigOptions, configuration
from lightmq.cli.outcome import CommandFailed
from lightmq.data_directory import prepare
from lightmq.greeting import durability, part_greeting, up_greeting, who_gets_in
from lightmq.ports import check_free
from lightmq.serving import serve
from mqtt_proxy.config import ProxyConfig
from runtime.config import Flag

NONE = ConfigOptions()

Data = Annotated[Path | None, Parameter(name=["--data", "-d"], help="Data directory.")]
MqttPort = Annotated[int | None, Parameter(name=["--mqtt-port"], help="MQTT port; 0: any free one.")]
RemotingPort = Annotated[int | None, Parameter(name=["--remoting-port"], help="Remoting port; 0: any free one.")]
AdminPort = Annotated[int | None, Parameter(name=["--admin-port"], help="Administration port; 0: any free one.")]
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
        """What was given."""
        return [
            Flag(f"proxy.listen.{each.name}", OPTIONS[each.name], getattr(self, each.name)) for each in fields(self)
        ]


NO_LISTENERS = ListenOptions()


def check_mqtt_ports(config: ProxyConfig) -> None:
    """Raise PortTaken when an MQTT port cannot be listened on; one that is shared can."""
    listen = config.listen
    if listen.reuse_port:
        return
    check_free(config.listen_host, config.port, "--mqtt-port")
    for port, option in (
        (listen.tls_port, "--tls-port"),
        (listen.ws_port, "--ws-port"),
        (listen.wss_port, "--wss-port"),
    ):
        if port is not None:
            check_free(config.listen_host, port, option)


def check_users(config: ProxyConfig) -> None:
    """Raise PasswordFileError when there is a password file that a proxy would not use."""
    if config.password_file is not None:
        from mqtt_proxy.access.password_file import load

        load(config.password_file)


def up(
    *,
    data: Data = None,
    mqtt_port: MqttPort = None,
    remoting_port: RemotingPort = None,
    admin_port: AdminPort = None,
    password_file: Passwords = None,
    acl_file: Acl = None,
    readers: Readers = None,
    json_output: Json = False,
    listen: ListenOptions = NO_LISTENERS,
    options: ConfigOptions = NONE,
) -> None:
    """Start controller, broker and MQTT proxy in one process, with durable storage."""
    flags = [
        Flag("up.data_directory", "--data", data),
        Flag("proxy.port", "--mqtt-port", mqtt_port),
        Flag("up.remoting_port", "--remoting-port", remoting_port),
        Flag("up.admin_port", "--admin-port", admin_port),
        Flag("proxy.password_file", "--password-file", password_file),
        Flag("proxy.acl_file", "--acl-file", acl_file),
        Flag("broker.range_readers", "--readers", readers),
        *listen.flags(),
    ]
    value = configuration(options, flags).value
    check_mqtt_ports(value.proxy)
    check_free(value.up.host, value.up.remoting_port, "--remoting-port")
    check_free(value.up.host, value.up.admin_port, "--admin-port")
    check_users(value.proxy)
    prepare(value.up.data_directory, "--data")
    from lightmq.all_in_one import AllInOne

    serve(
        lambda: AllInOne(value),
        settings=value.logs,
        json_output=json_output,
        greeting=lambda ports: up_greeting(ports, value.up, value.proxy, value.broker),
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
    """Start a broker as a process of its own."""
    flags = [
        Flag("broker.data_directory", "--data", data),
        Flag("broker.port", "--remoting-port", remoting_port),
        Flag("broker.admin_port", "--admin-port", admin_port),
        Flag("broker.controllers", "--controllers", controllers),
        Flag("broker.range_readers", "--readers", readers),
    ]
    value = configuration(options, flags).value
    check_free(value.broker.host, value.broker.port, "--remoting-port")
    check_free(value.broker.admin_host, value.broker.admin_port, "--admin-port")
    prepare(value.broker.data_directory, "--data")
    from lightmq.parts import broker_part

    serve(
        lambda: broker_part(value.broker),
        settings=value.logs,
        json_output=json_output,
        greeting=lambda ports: f"{part_greeting('broker', ports)}\n{durability(value.broker)}",
    )


def controller(
    *,
    data: Data = None,
    remoting_port: RemotingPort = None,
    admin_port: AdminPort = None,
    json_output: Json = False,
    options: ConfigOptions = NONE,
) -> None:
    """Start a controller, which is also the name server, as a process of its own."""
    flags = [
        Flag("controller.data_directory", "--data", data),
        Flag("controller.port", "--remoting-port", remoting_port),
        Flag("controller.admin_port", "--admin-port", admin_port),
    ]
    value = configuration(options, flags).value
    check_free(value.controller.host, value.controller.port, "--remoting-port")
    check_free(value.controller.admin_host, value.controller.admin_port, "--admin-port")
    prepare(value.controller.data_directory, "--data")
    from lightmq.parts import controller_part

    serve(
        lambda: controller_part(value.controller),
        settings=value.logs,
        json_output=json_output,
        greeting=lambda ports: part_greeting("controller", ports),
    )


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
    """Start an MQTT proxy as a process of its own, or several on the same ports."""
    flags = [
        Flag("proxy.port", "--mqtt-port", mqtt_port),
        Flag("proxy.admin_port", "--admin-port", admin_port),
        Flag("proxy.controllers", "--controllers", controllers),
        Flag("proxy.broker", "--broker", broker_address),
        Flag("proxy.password_file", "--password-file", password_file),
        Flag("proxy.acl_file", "--acl-file", acl_file),
        *listen.flags(),
    ]
    value = configuration(options, flags).value
    check_mqtt_ports(value.proxy)
    check_free(value.proxy.admin_host, value.proxy.admin_port, "--admin-port")
    check_users(value.proxy)
    from lightmq.parts import proxies_part, proxy_part

    serve(
        lambda: proxies_part(value.proxy, value.logs) if value.proxy.listen.processes > 1 else proxy_part(value.proxy),
        supervised=supervised,
        settings=value.logs,
        json_output=json_output,
        greeting=lambda ports: f"{part_greeting('proxy', ports)}\nMQTT: {who_gets_in(value.proxy)}.",
    )


def bridge(
    *,
    admin_port: AdminPort = None,
    controllers: Controllers = None,
    broker_address: Annotated[str | None, Parameter(name=["--broker"], help="host:port of the broker.")] = None,
    json_output: Json = False,
    options: ConfigOptions = NONE,
) -> None:
    """Start a bridge to the MQTT brokers of the configuration's [[bridge.connections]], as a process of its own."""
    flags = [
        Flag("bridge.admin_port", "--admin-port", admin_port),
        Flag("bridge.controllers", "--controllers", controllers),
        Flag("bridge.broker", "--broker", broker_address),
    ]
    value = configuration(options, flags).value
    if not value.bridge.connections:
        raise CommandFailed("no bridge is configured: put [[bridge.connections]] into the file given with --config")
    check_free(value.bridge.admin_host, value.bridge.admin_port, "--admin-port")
    from lightmq.parts import bridge_part

    serve(
        lambda: bridge_part(value.bridge),
        settings=value.logs,
        json_output=json_output,
        greeting=lambda ports: part_greeting("bridge", ports),
    )
