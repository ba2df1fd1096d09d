"""``lightmq migrate rocketmq``: mirror a live RocketMQ cluster into this one, see how far it is, compare, switch.

lightmq migrate rocketmq --from old:9876                    copy what is there now, then end
lightmq migrate rocketmq --from old:9876 --follow           go on for ever
lightmq migrate rocketmq status|verify --from old:9876
lightmq migrate rocketmq switch|switch-back --from old:9876 move the producers
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from lightmq.cli.connections import ServerTarget
from lightmq.cli.examples import epilogue
from lightmq.cli.outcome import CommandFailed, CommandMisused, print_rows, printable
from lightmq.cli.progress import ShowProgress, progress
from lightmq.cli.times import Seconds
from remoting.client.connection import dial_as, signing_dial
from remoting.client.tls import ClientTls

HERE = ServerTarget()
HEADINGS = ("TOPIC", "SOURCE", "TARGET", "COPIED", "RETURNED", "LAG", "STATE")
PROGRESS_S = 0.2
NOTHING = "the source has no topic that is selected"

migrate = App(
    name="migrate",
    help="Move into this installation from another one.",
    help_format="plaintext",
    help_epilogue=epilogue("migrate"),
)

Patterns = Annotated[list[str] | None, Parameter(negative=(), help="Only these; * and ? match. May be repeated.")]


@migrate.command
def rocketmq(
    action: Annotated[
        Literal["copy", "status", "verify", "switch", "switch-back"],
        Parameter(help="copy mirrors; status and verify show; switch and switch-back move the producers."),
    ] = "copy",
    *,
    source: Annotated[str, Parameter(name="--from", help="RocketMQ's name servers as host:port,…")],
    name: Annotated[str, Parameter(help="Names the source; keep it for later runs.")] = "rocketmq",
    follow: Annotated[bool, Parameter(negative=(), help="Go on mirroring until interrupted.")] = False,
    topic: Patterns = None,
    group: Patterns = None,
    rate: Annotated[int, Parameter(help="Copy at most this many messages a second; 0: no limit.")] = 0,
    users: Annotated[bool, Parameter(negative=(), help="Mirror users and rules too, once.")] = False,
    settle: Annotated[Seconds, Parameter(help="switch: this long without a message at the source.")] = 35.0,
    one_way: Annotated[bool, Parameter(negative=(), help="Mirror nothing back to the source.")] = False,
    from_key_file: Annotated[Path | None, Parameter(help="File key:secret for the source.")] = None,
    from_tls: Annotated[bool, Parameter(negative=(), help="Connect to the source with TLS.")] = False,
    from_tls_ca: Annotated[Path | None, Parameter(help="Certificate authorities of the source, PEM.")] = None,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per line.")] = False,
    show: ShowProgress = False,
    target: ServerTarget = HERE,
) -> None:
    """Mirror topics, groups, offsets and messages from a live RocketMQ cluster."""
    from lightmq.migrate.cluster import Cluster
    from lightmq.migrate.migration import Migration, Options
    from runtime.clock import SystemClock

    if not name or "/" in name or not name.isprintable():
        raise CommandMisused(f"--name {name!r} is empty or has a slash")
    if rate < 0 or settle < 0:
        raise CommandMisused("--rate and --settle are not negative")
    tls = ClientTls(from_tls_ca, None, None, "", verify=True) if from_tls else None
    options = Options(
        name=name, topic=_chosen(topic), group=_chosen(group), messages_per_second=rate, users=users, settle_s=settle,
        one_way=one_way,
    )  # fmt: skip

    async def work() -> None:
        there = Cluster(source, signing_dial(from_key_file, tls))
        here = Cluster(target.server, dial_as(target.security.signer, target.security.client_tls))
        try:
            migration = Migration(there, here, options, SystemClock())
            await _carry_out(action, migration, follow=follow, as_json=json_output, as_lines=show)
        finally:
            await there.close()
            await here.close()

    asyncio.run(work())


def _chosen(patterns: list[str] | None) -> Callable[[str], bool]:
    if not patterns:
        return lambda _: True
    return lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


async def _carry_out(action: str, migration: Any, *, follow: bool, as_json: bool, as_lines: bool) -> None:
    from lightmq.migrate.report import lags, verified

    if action == "copy" and follow:
        await migration.follow(lambda: _mirroring(migration, as_json=as_json))
    elif action == "copy":
        await _copied(migration, as_lines=as_lines)
        _left_out(migration, as_json=as_json)
        rows = await lags(migration)
        _say(f"copied {sum(row['copied'] for row in rows)} messages in {len(rows)} queues\n")
    elif action == "status":
        await migration.read()
        _left_out(migration, as_json=as_json)
        print_rows(await lags(migration), HEADINGS, _cells, json_output=as_json, empty=NOTHING)
    elif action == "verify":
        await migration.read()
        rows = await verified(migration)
        print_rows(rows, HEADINGS, _cells, json_output=as_json, empty=NOTHING)
        if any(row["state"] != "equal" for row in rows):
            raise CommandFailed("the copies differ, see above")
    else:
        topics = await (migration.let_producers_in() if action == "switch" else migration.send_producers_back())
        side = "here" if action == "switch" else "at the source"
        _say(f"producers write {side} now: {', '.join(map(printable, topics)) or 'no topic'}\n")


async def _copied(migration: Any, *, as_lines: bool) -> None:
    """Copy to the end, and show how much of what was there at the beginning is copied by now."""
    with progress("copying messages", as_lines=as_lines) as report:
        copying = asyncio.create_task(migration.copy_to_the_end())
        while not (await asyncio.wait([copying], timeout=PROGRESS_S))[0]:
            _tell(migration, report)
        await copying
        _tell(migration, report)


def _tell(migration: Any, report: Callable[[int, int], None]) -> None:
    counts = [copier.counts for copier in migration.copiers]
    wanted = sum(one.wanted for one in counts)
    done = sum(one.copied + one.expired for one in counts)
    report(min(done, wanted) if wanted else done, wanted)


def _mirroring(migration: Any, *, as_json: bool) -> None:
    _left_out(migration, as_json=as_json)
    _say("mirroring; interrupt to stop\n")


def _left_out(migration: Any, *, as_json: bool) -> None:
    found = {**migration.plan.left_out, **migration.refused}
    for what, why in sorted(found.items()):
        if as_json:
            sys.stdout.write(json.dumps({"left_out": what, "reason": why}) + "\n")
        else:
            sys.stderr.write(f"not mirrored: {printable(what)}: {printable(why)}\n")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _state(row: dict[str, Any]) -> str:
    return f"{row['state']}: {row['reason']}" if row["reason"] else str(row["state"])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        printable(row["topic"]), printable(row["source"]), printable(row["target"]), str(row["copied"]),
        str(row["returned"]), str(row["lag"]), printable(_state(row)),
    )  # fmt: skip
