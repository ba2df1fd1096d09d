"""``lightmq doctor``: what is fine, what is not, and the one thing to do about it.

Exit status 1 when a check failed; a warning does not count.

``lightmq doctor`` checks this Python, this machine, a data directory, a running broker.

Each check answers with one :class:`CheckResult`; none changes anything except a probe file that is removed again.
Invariant: a finding that is not ``ok`` names its remedy. No loop: all checks block, the slowest for seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from lightmq.cli.connections import Security, ServerTarget
from lightmq.cli.defaults import SERVER_VARIABLE, ProfileName
from lightmq.cli.options import ConfigOptions, configuration
from lightmq.cli.outcome import FAILED as FAILED_STATUS
from lightmq.cli.outcome import json_object, printable, unreadable
from lightmq.extras import install_command, pip_install
from lightmq.servers.serving import PortTaken, check_free
from remoting.native.choice import remedy
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import TlsFailed
from runtime.clock import Clock, SystemClock
from runtime.config import Flag

if TYPE_CHECKING:
    from broker.config import BrokerConfig


OK = "ok"
WARNING = "warning"
FAILED = "failed"

FREE_BYTES_MIN = 1024**3
FSYNC_PROBES = 20
FSYNC_SLOW_MS = 20.0
"""Above this a message waits noticeably for its acknowledgement."""
FSYNC_UNREAL_MS = 0.02
"""Below this the file system only pretends (tmpfs, a disk with its cache lying)."""
PROBE_BYTES = 4_096
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The answer of one check: ``state`` is ok, warning or failed; ``remedy`` is what to do when it is not ok."""

    name: str
    state: str
    text: str
    remedy: str = ""


def examine(
    data: Path, ports: dict[str, int], host: str, server: ServerTarget, *, spark: bool = True
) -> Iterator[CheckResult]:
    """Run every check; ports are given by the option that sets them."""
    yield check_python()
    yield check_environment()
    yield check_loop()
    yield check_crc32c()
    yield check_compiled_core()
    if spark:
        yield check_pyspark()
        yield check_java()
    yield check_space(data)
    yield check_fsync(data)
    running = check_server(server)
    yield running
    if running.state == OK:
        yield check_mqtt_group(server)
    for option, port in ports.items():
        yield check_port(host, port, option, is_running=running.state == OK)


def check_python() -> CheckResult:
    """The interpreter is one that we test with."""
    text = f"{sys.version.split()[0]} at {sys.executable}"
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return CheckResult("python", WARNING, text, "use Python 3.11, 3.12 or 3.13")
    if not __debug__:
        return CheckResult("python", FAILED, f"{text}, run with -O", "start without -O and without PYTHONOPTIMIZE")
    return CheckResult("python", OK, text)


def check_environment() -> CheckResult:
    """This runs in a virtual environment: the packages have common names."""
    if sys.prefix != sys.base_prefix:
        return CheckResult("environment", OK, f"virtual environment {sys.prefix}")
    remedy = "install LightMQ into a virtual environment: python3 -m venv .venv && .venv/bin/pip install ."
    return CheckResult("environment", WARNING, "no virtual environment; package names may clash with others", remedy)


def check_loop() -> CheckResult:
    """Which loop runs; with uvloop, an extra, some requests cost less CPU."""
    from runtime.process import loop_name

    name = loop_name()
    if name == "uvloop":
        return CheckResult("event loop", OK, name)
    return CheckResult(
        "event loop", OK, f"{name}; with uvloop RocketMQ's requests may need less CPU", pip_install("uvloop")
    )


def check_crc32c() -> CheckResult:
    """Checksums are computed by the processor's instruction or by compiled code."""
    try:
        from remoting.native import checksum

        way = checksum.way()
    except ImportError:
        return CheckResult("crc32c", FAILED, "not installed", f"{sys.executable} -m pip install google-crc32c")
    if way == checksum.BY_PLAIN_PYTHON:
        return CheckResult("crc32c", WARNING, f"{way}, a thousand times slower", remedy([checksum.choice.reason]))
    return CheckResult("crc32c", OK, way)


def check_compiled_core() -> CheckResult:
    """The native core and the typed modules are compiled; without that all works, far slower."""
    import broker
    import mqtt_proxy
    import remoting
    from remoting.native import checksum

    reasons = [checksum.choice.reason, *(package.TYPED.reason for package in (remoting, broker, mqtt_proxy))]
    found = list(dict.fromkeys(filter(None, reasons)))
    if not found:
        return CheckResult("compiled core", OK, "in use")
    return CheckResult("compiled core", WARNING, f"pure Python in its place: {'; '.join(found)}", remedy(found))


def check_pyspark() -> CheckResult:
    """Spark is installed and new enough for Python data sources that stream."""
    from importlib.metadata import PackageNotFoundError, version

    remedy = install_command("spark")
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return CheckResult("pyspark", WARNING, "not installed; only needed for Spark jobs", remedy)
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < (4, 2):
        return CheckResult("pyspark", WARNING, f"{found} is too old, 4.2 or newer is needed", remedy)
    return CheckResult("pyspark", OK, found)


def check_java() -> CheckResult:
    """There is a Java for Spark; names it and why it was chosen."""
    from lightmq.spark_session import JavaNotFound, choose_java

    try:
        choice = choose_java()
    except JavaNotFound as error:
        remedy = install_command("jre")
        return CheckResult("java", WARNING, f"{str(error).splitlines()[0]} Only needed for Spark jobs.", remedy)
    return CheckResult("java", OK, f"{choice.why}; JAVA_HOME={choice.home}")


def check_space(data: Path) -> CheckResult:
    """The disk of the data directory has room."""
    place = existing_parent(data)
    free = shutil.disk_usage(place).free
    text = f"{free / GIB:.1f} GiB free for {data}"
    if free < FREE_BYTES_MIN:
        return CheckResult("disk space", FAILED, text, "free some space, or choose another directory with --data")
    return CheckResult("disk space", OK, text)


def check_fsync(data: Path, clock: Clock | None = None) -> CheckResult:
    """How long fdatasync of a small write takes where the data will be: each acknowledgement waits for one."""
    place = existing_parent(data)
    try:
        latencies = fsync_latencies_ms(place, clock or SystemClock())
    except OSError as error:
        remedy = "choose a directory you may write to with --data"
        return CheckResult("fdatasync", FAILED, f"cannot write in {place}: {error.strerror}", remedy)
    median, worst = statistics.median(latencies), max(latencies)
    text = f"median {median:.2f} ms, worst {worst:.2f} ms of {len(latencies)} in {place}"
    if median > FSYNC_SLOW_MS:
        return CheckResult("fdatasync", WARNING, text, "a local SSD makes acknowledgements quicker")
    if median < FSYNC_UNREAL_MS:
        remedy = "use a directory on a real disk if messages must survive a power cut"
        return CheckResult("fdatasync", WARNING, f"{text}: too quick to be a disk", remedy)
    return CheckResult("fdatasync", OK, text)


def fsync_latencies_ms(directory: Path, clock: Clock) -> list[float]:
    """Milliseconds of each of some fdatasync calls after a small append. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=".lightmq-probe-", dir=directory)
    try:
        latencies = []
        for _ in range(FSYNC_PROBES):
            os.write(descriptor, bytes(PROBE_BYTES))
            before = clock.monotonic_ns()
            os.fdatasync(descriptor)
            latencies.append((clock.monotonic_ns() - before) / 1e6)
        return latencies
    finally:
        os.close(descriptor)
        Path(name).unlink()


def check_server(target: ServerTarget) -> CheckResult:
    """A name server answers and knows a broker."""
    from lightmq.cli.connections import brokers

    remedy = "start one with: lightmq up"
    how = f"{target.server} with TLS" if target.security.tls else target.server
    try:
        with brokers(target) as found:
            names = ", ".join(f"{broker.name} at {broker.address}" for broker in found)
    except TlsFailed as error:
        remedy = "say whom to trust with --tls-ca FILE or broker.dial_tls.ca, and the name with --tls-server-name"
        return CheckResult("broker", WARNING, f"{how}: {str(error).partition(':')[0]}", remedy)
    except LightMQError as error:
        if not target.security.tls and "TLS" in str(error):
            remedy = "it takes TLS only: use --tls --tls-ca FILE, or broker.dial_tls in the configuration"
        return CheckResult("broker", WARNING, f"none reachable through {how} ({str(error).partition(':')[0]})", remedy)
    return CheckResult("broker", OK, f"{names} (through {how})")


def check_mqtt_group(target: ServerTarget) -> CheckResult:
    """MQTT is at one broker group, the controllers hold which, and it has a master."""
    from lightmq.cli.connections import cluster_info

    try:
        info = cluster_info(target)
    except LightMQError as error:
        return CheckResult("mqtt", WARNING, f"not known ({str(error).partition(':')[0]})", "start one with: lightmq up")
    held, known = info.mqtt_group, sorted(info.broker_addr_table)
    if not held and len(known) > 1:
        remedy = "start a proxy that is given controllers, or say where it is: lightmq cluster mqtt --move-to GROUP"
        return CheckResult("mqtt", WARNING, f"no controller holds which of {', '.join(known)} has MQTT", remedy)
    if not held:
        return CheckResult("mqtt", OK, "not decided: no proxy has asked a controller yet")
    if held in info.absent():
        remedy = "start its brokers; MQTT clients wait for them, and no other group takes its place"
        return CheckResult("mqtt", WARNING, f"at {held}, which has no master", remedy)
    return CheckResult("mqtt", OK, f"at {held}")


def check_clients(target: ServerTarget) -> Iterator[CheckResult]:
    """RocketMQ's clients at every broker: which languages and versions, and what was refused to whom.

    Raises LightMQError when there is no broker, or its answer cannot be read.
    """
    from lightmq.cli.connections import brokers

    with brokers(target) as found:
        answers = [
            (broker.name, json_object(broker.ask(Command(RequestCode.CLIENT_LIST)).body, "to CLIENT_LIST"))
            for broker in found
        ]
    for name, answer in answers:
        try:
            yield from _judged(name, answer)
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable("to CLIENT_LIST", error) from error


def _judged(broker: str, answer: dict[str, Any]) -> Iterator[CheckResult]:
    kinds = Counter(_made_by(client) for client in answer["clients"])
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none connected"
    if answer["more"]:
        text += f", and {answer['more']} more"
    yield CheckResult(broker, OK, printable(f"clients: {text}"))
    connected = {client["client"]: client for client in answer["clients"]}
    for row in answer["refused"]:
        state = "connected" if row["client"] in connected else "not connected now"
        made_by = _made_by({**row, "grpc": connected.get(row["client"], {}).get("grpc")})
        text = f"{row['client']} ({made_by}, {state}) sent {row['name']} ({row['code']}) {row['count']} times"
        remedy = f"refused with {row['answer']}: {row['remark']}"
        yield CheckResult(broker, WARNING, printable(text), printable(remedy))
    if answer["forgotten"]:
        text = f"the table of refused requests was full: {answer['forgotten']} earlier rows are no longer in it"
        yield CheckResult(broker, WARNING, text, "see rocketmq_unsupported_requests_total for all of them by code")


def _made_by(client: dict[str, Any]) -> str:
    if client.get("grpc") is not None:
        return f"{client['language']} {client['grpc']} by gRPC".replace("  ", " ")
    return f"{client['language']} {version_text(int(client['version']))}"


V4_0_0_SNAPSHOT = 212
"""Number of this version in RocketMQ's enumeration. From here on a version has two numbers, that of its snapshots
first, and there are ten versions in a minor one and ten minor ones in a major one."""


def version_text(number: int) -> str:
    """The version that RocketMQ's clients give as a number: 513 is 5.5.0."""
    if number < V4_0_0_SNAPSHOT:
        return f"version {number}"
    release = (number - V4_0_0_SNAPSHOT) // 2
    return f"{4 + release // 100}.{release // 10 % 10}.{release % 10}"


def check_port(host: str, port: int, option: str, *, is_running: bool) -> CheckResult:
    """A port `lightmq up` would take is free, or taken by the broker that runs."""
    try:
        check_free(host, port, option)
    except PortTaken as error:
        if is_running:
            return CheckResult(f"port {port}", OK, "in use, and a broker is running")
        return CheckResult(f"port {port}", WARNING, "in use by another program", str(error).partition("; ")[2])
    return CheckResult(f"port {port}", OK, "free")


def existing_parent(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.is_dir())


MARKS = {OK: "ok     ", "warning": "warning", FAILED: "FAILED "}
NONE = ConfigOptions()
NO_SECURITY = Security()
TIMEOUT_S = 2.0
"""Longest wait for a broker."""


def doctor(
    *,
    data: Annotated[Path | None, Parameter(name=["--data", "-d"], help="Data directory to check.")] = None,
    server: Annotated[
        str | None, Parameter(name=["--server", "-s"], env_var=SERVER_VARIABLE, help="Name servers as host:port,…")
    ] = None,
    profile: ProfileName = "",
    rocketmq: Annotated[
        bool,
        Parameter(negative=(), help="Check only RocketMQ's clients: versions, and which use what is not offered."),
    ] = False,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object.")] = False,
    security: Security = NO_SECURITY,
    options: ConfigOptions = NONE,
) -> None:
    """Check this machine and a running broker, and suggest remedies.

    Key and TLS are those of the options, else those of the configuration (`broker.access_key_file`, `broker.dial_tls`).
    """
    value = configuration(options, [Flag("up.data_directory", "--data", data)]).value
    ports = {
        "--mqtt-port": value.proxy.plain_port or 0,
        "--remoting-port": value.up.remoting_port,
        "--admin-port": value.up.admin_port,
    }
    address = server or f"127.0.0.1:{value.up.remoting_port or 9876}"
    target = replace(target_of(address, security, value.broker), profile=profile)
    findings = []
    checks = check_clients(target) if rocketmq else examine(value.up.data_directory, ports, value.up.host, target)
    for finding in checks:
        findings.append(finding)
        if not json_output:
            sys.stdout.write(render(finding))
            sys.stdout.flush()
    healthy = all(finding.state != FAILED for finding in findings)
    if json_output:
        sys.stdout.write(json.dumps({"healthy": healthy, "findings": [asdict(f) for f in findings]}) + "\n")
    if not healthy:
        raise SystemExit(FAILED_STATUS)


def target_of(address: str, given: Security, configured: BrokerConfig) -> ServerTarget:
    """The server to check, and how to reach it."""
    key_file, dial = given.access_key_file, configured.dial_tls
    if key_file is None and not given.access_key:
        key_file = configured.access_key_file
    if given.tls or not dial.enabled:
        security = replace(given, access_key_file=key_file)
    else:
        security = Security(
            access_key_file=key_file, access_key=given.access_key, tls=True, tls_ca=dial.ca,
            tls_certificate=dial.certificate, tls_key=dial.key,
            tls_server_name=dial.server_name, tls_insecure=not dial.verify,
        )  # fmt: skip
    return ServerTarget(server=address, timeout=TIMEOUT_S, security=security)


def render(finding: CheckResult) -> str:
    """One finding for people: what it is, and below it what to do."""
    line = f"{MARKS[finding.state]}  {finding.name:<13} {finding.text}\n"
    return line + (f"         {'':<13} → {finding.remedy}\n" if finding.remedy else "")
