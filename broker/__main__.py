"""`python -m broker`: one broker process; prints one JSON line with its ports when it is ready.

Options come from the table in `broker.config`: environment LIGHTMQ_BROKER__..., or arguments `--key=value` with the
table's dotted keys. Ends cleanly on SIGTERM and SIGINT.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from broker.app import BrokerApp
from broker.config import BrokerConfig
from broker.store.errors import StoreError
from remoting.access.rights import page_actions
from remoting.server.server import PageAccess
from runtime import logs, process
from runtime.admin import AdminServer
from runtime.config import ConfigError, Flag, load
from runtime.faults import parse_faults

FAULTS_VARIABLE = "LIGHTMQ_FAULTS"
"""For tests of whole processes only: named faults, see `runtime.faults.parse_faults`."""


def main(arguments: list[str]) -> int:
    """Run a broker until a signal; the exit status."""
    process.refuse_optimised()
    logs.setup()
    try:
        config = load(BrokerConfig, section="broker", environ=os.environ, flags=_flags(arguments)).value
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        process.run(_run(config))
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _flags(arguments: list[str]) -> list[Flag]:
    flags = []
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not name.startswith("--") or not separator:
            raise ConfigError(f"{argument!r}: arguments have the form --key=value")
        flags.append(Flag(name[2:].replace("-", "_"), name, value))
    return flags


async def _run(config: BrokerConfig) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    app = BrokerApp(config, faults=parse_faults(os.environ.get(FAULTS_VARIABLE, "")))
    admin = AdminServer(
        config.admin_host, config.admin_port, registry=app.registry, readiness=app.readiness, status=app.status,
        hosts=config.admin_hosts, guard=PageAccess(app.access, app.authorizer, page_actions()),
        reasons=lambda: {"broker": app.unready_reason()}, degraded=lambda: {"broker": app.degraded_reason()},
    )  # fmt: skip
    try:
        await app.start()
        await admin.start()
        sys.stdout.write(json.dumps({"remoting": app.port, "admin": admin.port}) + "\n")
        sys.stdout.flush()
        process.settle_garbage()
        ending, failing = asyncio.ensure_future(ended.wait()), asyncio.ensure_future(app.until_failed())
        await asyncio.wait((ending, failing), return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            raise failing.result()
        failing.cancel()
    finally:
        await admin.stop()
        await app.stop()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
