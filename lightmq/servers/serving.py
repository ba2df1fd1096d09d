"""The run of a server process: check what would stop a start, start, print the ports, wait for a signal, stop.

A port in use and an unusable data directory are found before anything is started. The check of a port opens and closes
a socket; a later bind may still lose a race, with an error of the same text. A directory that :func:`prepare` accepts
exists, and a file was written into it and removed again. SIGHUP reloads what may change at run time. A service that
cannot continue is stopped as well, and its reason is raised.
Invariant: the ports are printed once and only when everything is ready; SIGTERM and SIGINT end with status 0, a second
signal ends at once (acknowledged messages are durable anyway).

What a server prints when it is ready: its ports and the first things to try.

Invariant: every command printed here works as it stands, with the ports that are really open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from broker.config import BrokerConfig
from broker.replication.promises import promise
from broker.roles.durability import rule_of
from console.config import ConsoleConfig
from console.tokens import TokenFile
from lightmq.configuration import LogsConfig, UpConfig
from mqtt_proxy.config import PLAIN_PORT, ProxyConfig
from remoting import background
from remoting.protocol.errors import LocalMisuse
from runtime import logs, process
from runtime.files import make_directory
from runtime.service import Service

ALONE = BrokerConfig()


def who_gets_in(proxy: ProxyConfig, *, is_encrypted: bool = False) -> str:
    """Whose MQTT clients a listener without or with TLS serves, and how to change it."""
    host = proxy.listen_host if is_encrypted else proxy.plain_host
    if proxy.proves_names:
        proof = "a user of the password file" if proxy.password_file is not None else "a proven name"
        if is_loopback(host):
            return f"listening on {host}: only this machine; proxy.host lets others in, whose passwords need TLS"
        clear = "" if is_encrypted else ", whose passwords cross the network in the clear"
        return f"listening on {host}: other machines with {proof}{clear}"
    if is_loopback(host):
        needed = "--password-file FILE lets" if is_encrypted else "--password-file FILE and proxy.host let"
        return f"only this machine; {needed} others in"
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


def up_greeting(
    ports: Mapping[str, int],
    up: UpConfig,
    proxy: ProxyConfig,
    broker: BrokerConfig = ALONE,
    *,
    console: ConsoleConfig | None = None,
    notes: Mapping[str, str] = {},
) -> str:
    """The text of ``lightmq up``; without `console` there is none."""
    remoting, admin = ports["remoting"], ports["admin"]
    here = client_host(up.host)
    scheme, page = _scheme(console), _console(console, f"{here}:{admin}", up, notes)
    server = "" if (here, remoting) == ("127.0.0.1", 9876) else f" --server {here}:{remoting}"
    return f"""\
LightMQ is ready; data in {up.data_directory}
{_listeners(ports, proxy)}
  remoting  {here}:{remoting}   (RocketMQ clients and Spark: name server and broker)
{_vip(ports, here)}{_grpc(ports)}{page}  admin     {scheme}://{here}:{admin}/status   /metrics   /readyz
  {durability(broker)}

Try it in two other terminals:
{_first_message(ports, proxy)}  lightmq tail 'plant/#'{server}

From Spark:
  from lightmq.spark import session
  spark = session()
  rows = (spark.readStream.format("rocketmq")
          .option("nameServer", "{here}:{remoting}")
          .option("mqttFilter", "plant/#").load())

Ctrl-C stops it."""


def _scheme(console: ConsoleConfig | None) -> str:
    """The scheme of the administration port."""
    return "https" if console is not None and console.tls.certificate is not None else "http"


def _console(console: ConsoleConfig | None, place: str, up: UpConfig, notes: Mapping[str, str]) -> str:
    """The lines of the console: with the token of the first start a link that signs in, later how to get another."""
    if console is None or not console.enabled:
        return ""
    page = f"{_scheme(console)}://{place}/console/"
    file, token = notes.get("console_token_file"), notes.get("console_token")
    if file:
        return f"  console   {page}   (signs in as administrator: the token in {file}, for you alone)\n"
    if token:
        return f"  console   {page}#token={token}\n            (signs in as administrator; shown only this once)\n"
    renew = "" if str(up.data_directory) == str(UpConfig().data_directory) else f" --data {up.data_directory}"
    return f"  console   {page}   (new token: lightmq console token --renew{renew})\n"


def off_terminal(notes: Mapping[str, str], directory: Path, *, is_terminal: bool) -> Mapping[str, str]:
    """The notes as they may be printed: where no person reads along, a token would stay in a log that others read.

    It goes to a file in the data directory then, which only its owner can read. Raises OSError.
    """
    token = notes.get("console_token", "")
    if is_terminal or not token:
        return notes
    path = TokenFile(directory).keep_unshown(token)
    return {**{name: note for name, note in notes.items() if name != "console_token"}, "console_token_file": str(path)}


def _vip(ports: Mapping[str, int], here: str) -> str:
    """The line of the second remoting port, if it is open: nobody is to find it by surprise."""
    if "vip" not in ports:
        return ""
    return f"  VIP       {here}:{ports['vip']}   (RocketMQ clients before 4.5; broker.vip_port = 0 closes it)\n"


def _grpc(ports: Mapping[str, int]) -> str:
    """The line of the gRPC port, if it is open."""
    return f"  gRPC      port {ports['grpc']}   (RocketMQ's gRPC clients)\n" if "grpc" in ports else ""


def _first_message(ports: Mapping[str, int], proxy: ProxyConfig) -> str:
    """Commands that reach the plain listener; none where there is none: with TLS they would need the authority."""
    if "mqtt" not in ports:
        return ""
    host, port = client_host(proxy.plain_host), ports["mqtt"]
    target = ("" if host == "127.0.0.1" else f" --host {host}") + ("" if port == PLAIN_PORT else f" -p {port}")
    return f"""\
  lightmq sub{target} -t 'plant/#' -v
  lightmq pub{target} -t plant/7/temp -m '{{"celsius": 21.5}}'
"""


def _listeners(ports: Mapping[str, int], proxy: ProxyConfig) -> str:
    """A line for each MQTT listener that is open, which says who gets in."""
    path = proxy.listen.ws_path
    kinds = (
        ("mqtt", "MQTT      ", ""),
        ("mqtt-tls", "MQTTS     ", ""),
        ("mqtt-ws", "WebSocket ws://", path),
        ("mqtt-wss", "WebSocket wss://", path),
    )
    lines = []
    for name, head, tail in kinds:
        if name not in ports:
            continue
        is_encrypted = name in {"mqtt-tls", "mqtt-wss"}
        host = client_host(proxy.listen_host if is_encrypted else proxy.plain_host)
        who = who_gets_in(proxy, is_encrypted=is_encrypted)
        what = who if name == "mqtt" else f"{'TLS' if is_encrypted else 'no TLS'}; {who}"
        lines.append(f"  {head}{host}:{ports[name]}{tail}   ({what})")
    return "\n".join(lines)


def part_greeting(part: str, ports: Mapping[str, int], notes: Mapping[str, str] = {}) -> str:
    """The text of a server that is a process of its own, with the token of the first start where it has a console."""
    listed = ", ".join(f"{name} port {port}" for name, port in ports.items())
    file, token = notes.get("console_token_file"), notes.get("console_token")
    shown = f"{token}, shown only this once" if token else f"in {file}, for you alone"
    signs_in = f"\nThe console's administrator token is {shown}." if token or file else ""
    return f"lightmq {part} is ready: {listed}. Ctrl-C stops it.{signs_in}"


class PortTaken(LocalMisuse):
    """A port cannot be listened on; names the port, the option that sets it and what to do."""


def explain(host: str, port: int, option: str, error: OSError) -> PortTaken:
    """The error of a listening socket in words."""
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            f"port {port} is already in use; stop what listens there or choose another with {option} "
            f"({option} 0 takes any free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return PortTaken(f"port {port} may not be opened by this user; choose one above 1023 with {option}")
    return PortTaken(f"cannot listen on {host}:{port} ({error.strerror or error}); choose another with {option}")


def check_free(host: str, port: int, option: str) -> None:
    """Raise PortTaken when ``host:port`` cannot be listened on; port 0 is always fine."""
    if port == 0:
        return
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise explain(host, port, option, error) from error


MODE = 0o700


class DirectoryUnusable(LocalMisuse):
    """A data directory cannot be made or written; names it, the reason and the option that chooses another."""


def prepare(directory: Path, option: str) -> None:
    """Make ``directory`` if it is not there and see that it can be written. Raises DirectoryUnusable."""
    try:
        make_directory(directory, mode=MODE)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise DirectoryUnusable(
            f"data directory {directory} cannot be used ({error.strerror or error}); "
            f"fix that or choose another with {option}"
        ) from error


INPUT = 0
REMIND_S = 5.0
"""How often the log says what is not ready."""
OPENED_LAST = ("console", "admin")
"""They wait for the parts that they report on, which have the reasons."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


Greeting = Callable[[Mapping[str, int], Mapping[str, str]], str]
"""(open ports, what else is said) -> what people read."""


class Server(Service, Protocol):
    """What can be served: a service that knows its ports once it is started."""

    def ports(self) -> Mapping[str, int]:
        """Open ports by protocol: mqtt, remoting, admin."""
        ...

    def notes(self) -> Mapping[str, str]:
        """What is said once with the ports, by name."""
        ...

    def unready(self) -> Mapping[str, str]:
        """Part -> why it does not do its work now, also while it starts; nothing when all do."""
        ...

    def until_failed(self) -> Awaitable[Exception]:
        """Wait until the started service fails by itself; return why."""
        ...

    def reload(self) -> None:
        """Read again what may change while it runs: certificates."""
        ...


def serve(
    make: Callable[[], Server],
    *,
    settings: LogsConfig,
    json_output: bool,
    greeting: Greeting,
    directory: Path | None = None,
    supervised: bool = False,
) -> None:
    """Run the service that ``make`` builds (inside the loop) until a signal. Raises what its start raises.

    ``directory``: its data directory, if it has one. ``supervised``: by another process, which keeps the standard input
    open; its end is a signal to stop.
    """
    process.refuse_optimised()
    logs.setup(settings.level, json=settings.json)

    def announcement(ports: Mapping[str, int], notes: Mapping[str, str]) -> str:
        if directory is not None:
            notes = off_terminal(notes, directory, is_terminal=sys.stdout.isatty())
        return json.dumps({**ports, **notes}) if json_output else greeting(ports, notes)

    process.run(_serve(make, announcement=announcement, supervised=supervised))


async def _serve(make: Callable[[], Server], *, announcement: Greeting, supervised: bool) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, _end, loop, ended)
    if supervised:
        loop.add_signal_handler(signal.SIGINT, _leave_it)
        loop.add_reader(INPUT, _input_moved, loop, ended)
    service = make()
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    reminding = background.task(_remind(service), "says why the server is not ready")
    starting = asyncio.ensure_future(service.start())  # a signal while starting must end it as well
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _say(announcement(service.ports(), service.notes()))
            process.settle_garbage()
            await _until_the_end(service, ending)
    finally:
        ending.cancel()
        reminding.cancel()
        if not starting.done():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
        else:
            await service.stop()


async def _remind(service: Server) -> None:
    """Log what keeps the server from its work, again and again: without that it looks well to who reads the log."""
    log = logs.get_logger("server")
    while True:
        await asyncio.sleep(REMIND_S)
        for part, reason in service.unready().items() - {(last, "") for last in OPENED_LAST}:
            log.warning("not_ready", part=part, reason=reason or "it has not started")


async def _until_the_end(service: Server, ending: asyncio.Task[Any]) -> None:
    """Wait for a signal; raise what keeps the service from going on, if that is first."""
    failing = asyncio.ensure_future(service.until_failed())
    await asyncio.wait((failing, ending), return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        raise failing.result()
    failing.cancel()


def _end(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    ended.set()
    for number in SIGNALS:
        loop.remove_signal_handler(number)  # back to the default: the next one ends the process


def _leave_it() -> None:
    """Ctrl-C reaches every process of the terminal; the supervisor decides what to do."""


def _input_moved(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """The supervisor writes nothing: its end of the pipe is closed, so it has ended, also during a stop."""
    if os.read(INPUT, 1):
        return
    loop.remove_reader(INPUT)
    if ended.is_set():
        os._exit(1)
    ended.set()


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
