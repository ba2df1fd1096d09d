"""``lightmq doctor``: what is fine, what is not, and the one thing to do about it.

Exit status 1 when a check failed; a warning does not count.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from lightmq.cli.options import ConfigOptions, configuration
from lightmq.cli.outcome import FAILED as FAILED_STATUS
from lightmq.examination import FAILED, OK, Finding, examine
from runtime.config import Flag

MARKS = {OK: "ok     ", "warning": "warning", FAILED: "FAILED "}
NONE = ConfigOptions()


def doctor(
    *,
    data: Annotated[Path | None, Parameter(name=["--data", "-d"], help="Data directory to check.")] = None,
    server: Annotated[str | None, Parameter(name=["--server", "-s"], help="Name server as host:port.")] = None,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object.")] = False,
    options: ConfigOptions = NONE,
) -> None:
    """Check this machine and a running broker, and say what to do."""
    value = configuration(options, [Flag("up.data_directory", "--data", data)]).value
    ports = {
        "--mqtt-port": value.proxy.port,
        "--remoting-port": value.up.remoting_port,
        "--admin-port": value.up.admin_port,
    }
    address = server or f"127.0.0.1:{value.up.remoting_port or 9876}"
    findings = []
    for finding in examine(value.up.data_directory, ports, value.up.host, address):
        findings.append(finding)
        if not json_output:
            sys.stdout.write(render(finding))
            sys.stdout.flush()
    healthy = all(finding.state != FAILED for finding in findings)
    if json_output:
        sys.stdout.write(json.dumps({"healthy": healthy, "findings": [asdict(f) for f in findings]}) + "\n")
    if not healthy:
        raise SystemExit(FAILED_STATUS)


def render(finding: Finding) -> str:
    """One finding for people: what it is, and below it what to do."""
    line = f"{MARKS[finding.state]}  {finding.name:<12} {finding.text}\n"
    return line + (f"         {'':<12} → {finding.remedy}\n" if finding.remedy else "")
