"""``lightmq doctor``: what is fine, what is not, and the one thing to do about it.

Exit status 1 when a check failed; a warning does not count.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from lightmq.cli.admin.examination import FAILED, OK, Finding, examine
from lightmq.cli.connections.link import Security, ServerTarget
from lightmq.cli.options import ConfigOptions, configuration
from lightmq.cli.outcome import FAILED as FAILED_STATUS
from runtime.config.tables import Flag

if TYPE_CHECKING:
    from broker.config import BrokerConfig

MARKS = {OK: "ok     ", "warning": "warning", FAILED: "FAILED "}
NONE = ConfigOptions()
NOTHING_SAID = Security()
TIMEOUT_S = 2.0
"""Longest wait for a broker."""


def doctor(
    *,
    data: Annotated[Path | None, Parameter(name=["--data", "-d"], help="Data directory to check.")] = None,
    server: Annotated[str | None, Parameter(name=["--server", "-s"], help="Name servers as host:port,…")] = None,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object.")] = False,
    security: Security = NOTHING_SAID,
    options: ConfigOptions = NONE,
) -> None:
    """Check this machine and a running broker, and say what to do.

    Key and TLS are those of the options, else those of the configuration (`broker.access_key_file`, `broker.dial_tls`).
    """
    value = configuration(options, [Flag("up.data_directory", "--data", data)]).value
    ports = {
        "--mqtt-port": value.proxy.port,
        "--remoting-port": value.up.remoting_port,
        "--admin-port": value.up.admin_port,
    }
    address = server or f"127.0.0.1:{value.up.remoting_port or 9876}"
    target = target_of(address, security, value.broker)
    findings = []
    for finding in examine(value.up.data_directory, ports, value.up.host, target):
        findings.append(finding)
        if not json_output:
            sys.stdout.write(render(finding))
            sys.stdout.flush()
    healthy = all(finding.state != FAILED for finding in findings)
    if json_output:
        sys.stdout.write(json.dumps({"healthy": healthy, "findings": [asdict(f) for f in findings]}) + "\n")
    if not healthy:
        raise SystemExit(FAILED_STATUS)


def target_of(address: str, said: Security, configured: BrokerConfig) -> ServerTarget:
    """The server to look at, and how."""
    key_file = said.access_key_file or configured.access_key_file
    if said.tls or not configured.dial_tls.enabled:
        return ServerTarget(server=address, timeout=TIMEOUT_S, **{**vars(said), "access_key_file": key_file})
    dial = configured.dial_tls
    return ServerTarget(
        server=address, timeout=TIMEOUT_S, access_key_file=key_file, tls=True, tls_ca=dial.ca,
        tls_certificate=dial.certificate, tls_key=dial.key, tls_server_name=dial.server_name,
        tls_insecure=not dial.verify,
    )  # fmt: skip


def render(finding: Finding) -> str:
    """One finding for people: what it is, and below it what to do."""
    line = f"{MARKS[finding.state]}  {finding.name:<13} {finding.text}\n"
    return line + (f"         {'':<13} → {finding.remedy}\n" if finding.remedy else "")
