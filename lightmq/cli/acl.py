"""``lightmq acl check`` and ``lightmq acl explain``: whether an access list can be used, and which rule decides what.

Invariant: the verdict comes from the code that decides in the proxy, asked about the same file; nothing is sent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from lightmq.cli.checks import check_filter, check_qos, check_topic
from lightmq.cli.options import ConfigOptions, configuration
from lightmq.cli.outcome import CommandFailed

acl = App(name="acl", help="Check an access list, or explain what it decides.", help_format="plaintext")
NONE = ConfigOptions()
Asked = Literal["publish", "will", "subscribe", "history", "deliver"]

WORDS = {
    "no_rule": "no rule allows it",
    "deny_rule": "a rule denies it",
    "dollar_topic": "topics that begin with $ belong to the server: nobody publishes there",
    "qos_retain_or_will": "the rule that fits does not go as far as this QoS, retained, or as a will",
    "retained": "the rule that fits gives no retained messages",
    "history": "the rule that fits gives no history",
    "not_a_filter": "there is no filter behind its prefix",
}


@acl.command
def check(
    file: Annotated[Path, Parameter(help="The access list.")],
) -> None:
    """Read an access list as the proxy would, and name every line that spoils it."""
    from remoting.access.acl_file import AclError, load

    try:
        rules = load(file)
    except AclError as error:
        for problem in error.problems:
            sys.stderr.write(f"{file}: {problem}\n")
        raise CommandFailed(
            f"{file} gives no rules: a proxy that reads it denies everything, or keeps its old rules"
        ) from None
    sys.stdout.write(
        f"{file}: {rules.count} rules for {len(rules.users)} users, {len(rules.groups)} groups, "
        f"clients without a name ({len(rules.anonymous)}) and everybody ({len(rules.everyone)})\n"
    )


@acl.command
def explain(
    *,
    client: Annotated[str, Parameter(help="Client id, for %c.")],
    topic: Annotated[str, Parameter(name=["--topic", "-t"], help="Topic name, or filter to subscribe to.")],
    user: Annotated[str | None, Parameter(name=["--user", "-u"], help="Proven user name; without: none.")] = None,
    group: Annotated[list[str] | None, Parameter(negative=(), help="A group of a token or hook.")] = None,
    action: Annotated[Asked, Parameter(help="What is to be done.")] = "publish",
    qos: Annotated[int, Parameter(help="QoS of the message.")] = 0,
    retain: Annotated[bool, Parameter(negative=(), help="Retained message.")] = False,
    file: Annotated[Path | None, Parameter(help="Access list; without: proxy.acl_file.")] = None,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")] = False,
    options: ConfigOptions = NONE,
) -> None:
    """Say whether a client may do something, and which rule says so."""
    from mqtt_proxy.access.authority import Authority
    from mqtt_proxy.access.counters import AccessCounters
    from remoting.access.acl_file import load
    from remoting.access.identity import Identity
    from remoting.access.rules import RuleSet
    from runtime.clock import SystemClock
    from runtime.metrics import Registry

    check_qos(qos)
    (check_filter if action in ("subscribe", "history") else check_topic)(topic)
    path = file or configuration(options).value.proxy.acl_file
    rules = RuleSet(open=True) if path is None else load(path)
    authority = Authority(rules, clock=SystemClock(), counters=AccessCounters(Registry()))
    identity = Identity(user or "", anonymous=user is None, client_id=client, groups=tuple(group or ()))
    verdict = authority.decide(identity, action, topic.encode(), qos=qos, retain=retain)
    decided = str(verdict.rule) if verdict.rule is not None else ""
    if json_output:
        answer = {"allowed": verdict.allowed, "reason": verdict.reason, "rule": decided}
        if verdict.allowed and action in ("subscribe", "history"):
            answer |= {"qos": verdict.qos_max, "retained": verdict.retained}
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    who = f"client {client!r}" + (f" of user {user!r}" if user is not None else " without a proven name")
    sys.stdout.write(f"{'allowed' if verdict.allowed else 'refused'}: {action} {topic!r} by {who}\n")
    if not verdict.allowed:
        sys.stdout.write(f"    {WORDS[verdict.reason]}\n")
    elif action in ("subscribe", "history"):
        given = "with" if verdict.retained else "without"
        sys.stdout.write(f"    up to QoS {verdict.qos_max}, {given} retained messages\n")
    if path is None:
        sys.stdout.write("    there is no access list (proxy.acl_file): whoever was let in may do everything else\n")
    elif decided:
        sys.stdout.write(f"    {decided}\n")
