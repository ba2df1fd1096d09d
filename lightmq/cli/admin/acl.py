"""``lightmq acl check``, ``explain``, ``test`` and ``rules``: whether an access list can be used, and what it decides.

Invariant: the verdict is made by the code that decides in the proxy; `check` and `explain` read a file and send
nothing, `test` and `rules` ask a running installation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from lightmq.cli.admin.clients import COUNT_DEFAULT, pages
from lightmq.cli.connections import ServerTarget, brokers
from lightmq.cli.examples import epilogue
from lightmq.cli.options import ConfigOptions, check_filter, check_qos, check_topic, configuration
from lightmq.cli.outcome import FAILED, CommandFailed, CommandMisused, json_object, print_rows, printable
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from runtime.reasons import in_words

if TYPE_CHECKING:
    from remoting.access.rights import Right

acl = App(
    name="acl",
    help="Check an access list, explain what it decides, or ask a running server.",
    help_format="plaintext",
    help_epilogue=epilogue("acl"),
)
NONE = ConfigOptions()
HERE = ServerTarget()
RULE_HEADINGS = ("BROKER", "APPLIES TO", "FOR", "WRITTEN IN", "RULE")
RULE_MEMBERS = ("broker", "on", "who", "place", "rule")
Asked = Literal["publish", "will", "subscribe", "history", "deliver"]


@acl.command
def check(
    file: Annotated[Path, Parameter(help="The access list.")],
    *,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")] = False,
) -> None:
    """Read an access list as the proxy would, and report every invalid line; exit status 1 if there is one."""
    from remoting.access.acl_file import AclError, load

    try:
        rules = load(file)
    except AclError as error:
        if json_output:
            sys.stdout.write(json.dumps({"file": str(file), "problems": list(map(str, error.problems))}) + "\n")
        else:
            sys.stderr.write("".join(f"{file}: {problem}\n" for problem in error.problems))
        raise CommandFailed(
            f"{file} gives no rules: a proxy that reads it denies everything, or keeps its old rules"
        ) from None
    if json_output:
        counts = {"rules": rules.count, "users": len(rules.users), "groups": len(rules.groups)}
        sys.stdout.write(json.dumps({"file": str(file), "problems": [], **counts}) + "\n")
        return
    sys.stdout.write(
        f"{file}: {rules.count} rules for {len(rules.users)} users, {len(rules.groups)} groups, "
        f"clients without a name ({len(rules.anonymous)}) and everybody ({len(rules.everyone)})\n"
    )


@acl.command
def explain(
    *,
    client: Annotated[str | None, Parameter(help="Client id, for %c.")] = None,
    topic: Annotated[
        str | None, Parameter(name=["--topic", "-t"], help="Topic name, or filter to subscribe to.")
    ] = None,
    key: Annotated[str | None, Parameter(help="Access key at a broker or controller, instead of a client.")] = None,
    request: Annotated[str | None, Parameter(help="Request of the key: a code, its name, or a page.")] = None,
    on: Annotated[str, Parameter(help="Topic, group ($group/NAME), sink ($sink/NAME) or broker name.")] = "",
    user: Annotated[
        str | None, Parameter(name=["--user", "-u"], help="Authenticated user name; default: none.")
    ] = None,
    group: Annotated[list[str] | None, Parameter(negative=(), help="A group of a token or hook.")] = None,
    action: Annotated[Asked, Parameter(help="What is to be done.")] = "publish",
    qos: Annotated[int, Parameter(help="QoS of the message.")] = 0,
    retain: Annotated[bool, Parameter(negative=(), help="Retained message.")] = False,
    file: Annotated[Path | None, Parameter(help="Access list; default: proxy.acl_file.")] = None,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")] = False,
    options: ConfigOptions = NONE,
) -> None:
    """Show whether a client or an access key may do something, and which rule decides."""
    if request is not None:
        _explain_key(key, request, on, file or configuration(options).value.broker.access_list, json_output=json_output)
        return
    if client is None or topic is None:
        raise CommandMisused(
            "name a client and a topic (--client, --topic), or a key and its request (--key, --request)"
        )
    from mqtt_proxy.access.gate import Authority
    from mqtt_proxy.metrics import AccessCounters
    from remoting.access.acl_file import load
    from remoting.access.rules import Identity, RuleSet
    from runtime.clock import SystemClock
    from runtime.metrics import Registry

    check_qos(qos)
    (check_filter if action in ("subscribe", "history") else check_topic)(topic)
    proxy = configuration(options).value.proxy
    path, partly = file or proxy.acl_file, proxy.access.thins
    rules = RuleSet(open=True) if path is None else load(path)
    authority = Authority(rules, clock=SystemClock(), counters=AccessCounters(Registry()), partly=partly)
    identity = Identity(user or "", anonymous=user is None, client_id=client, groups=tuple(group or ()))
    verdict = authority.decide(identity, action, topic.encode(), qos=qos, retain=retain)
    decided = str(verdict.rule) if verdict.rule is not None else ""
    if json_output:
        answer = {"allowed": verdict.allowed, "reason": verdict.reason, "rule": decided}
        if verdict.allowed and action in ("subscribe", "history"):
            answer |= {"qos": verdict.qos_max, "retained": verdict.retained, "partial": verdict.partial}
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    who = f"client {client!r}" + (f" of user {user!r}" if user is not None else " without a proven name")
    sys.stdout.write(f"{'allowed' if verdict.allowed else 'refused'}: {action} {topic!r} by {who}\n")
    if not verdict.allowed:
        sys.stdout.write(f"    {in_words(verdict.reason)}\n")
    elif action in ("subscribe", "history"):
        given = "with" if verdict.retained else "without"
        sys.stdout.write(f"    up to QoS {verdict.qos_max}, {given} retained messages\n")
        if verdict.partial:
            sys.stdout.write("    of its topics only those that may be read: each message is judged by its own topic\n")
    if path is None:
        sys.stdout.write("    there is no access list (proxy.acl_file): every accepted client may do everything else\n")
    elif decided:
        sys.stdout.write(f"    {decided}\n")


def _explain_key(key: str | None, request: str, on: str, path: Path | None, *, json_output: bool) -> None:
    """The verdict of a broker or controller on a request signed with the key, or with none."""
    from remoting.access.acl_file import load
    from remoting.access.key_policy import NOBODY, KeyPolicy
    from remoting.access.rights import CONSUME, of_topic
    from runtime.files import WatchedFile
    from runtime.logs import get_logger

    name, right = _right(request)
    if path is None:
        raise CommandFailed("there is no access list (broker.access_list): name one with --file")
    load(path)
    if right is None:
        raise CommandFailed(f"{name} is shown to everybody: it says yes or no and nothing else")
    action, identity = right.action, key or NOBODY
    policy = KeyPolicy(path, get_logger("acl"), WatchedFile)
    if action == CONSUME and right.subject == "topic" and on and not set("/+#") & set(on):
        on = of_topic(on)  # a RocketMQ topic or light queue, as a broker judges it: with all that is below its name
    allowed, role = policy(identity, action, on), policy.role_for(identity, action, on)
    if json_output:
        sys.stdout.write(json.dumps({"allowed": allowed, "action": action, "role": role}) + "\n")
        return
    who = f"key {key!r}" if key is not None else "a peer without a key"
    asked = f"{name} ({action})" + (f" on {on!r}" if on else "")
    sys.stdout.write(f"{'allowed' if allowed else 'refused'}: {asked} by {who}\n")
    if role:
        sys.stdout.write(f"    role {role}\n")


def _right(request: str) -> tuple[str, Right | None]:
    """Name and right of a code, a name or a page; None for a public page."""
    from remoting.access.rights import PAGES, RIGHTS
    from remoting.protocol.frames.codes import request_name

    if request in PAGES:
        return request, PAGES[request]
    named = {request_name(code): code for code in RIGHTS}
    code = int(request) if request.isdecimal() else named.get(request.upper())
    if code is None or code not in RIGHTS:
        raise CommandFailed(f"no broker or controller answers {request!r}: see docs/request-rights.md for the codes")
    return request_name(code), RIGHTS[code]


@acl.command(name="test")
def ask(
    *,
    topic: Annotated[str, Parameter(name=["--topic", "-t"], help="Topic name, or filter to subscribe to.")],
    client: Annotated[str, Parameter(help="Client id, for %c.")] = "",
    user: Annotated[str, Parameter(name=["--user", "-u"], help="Authenticated user name; default: none.")] = "",
    action: Annotated[Asked, Parameter(help="What is to be done.")] = "publish",
    qos: Annotated[int, Parameter(help="QoS of the message.")] = 0,
    retain: Annotated[bool, Parameter(negative=(), help="Retained message.")] = False,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="Print one JSON object.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """Ask a running installation what its rules in force decide, and which rule; exit status 1 if it is refused."""
    check_qos(qos)
    fields = {
        "topic": topic, "client": client, "user": user, "action": action, "qos": str(qos),
        "retain": str(retain).lower(),
    }  # fmt: skip
    with brokers(target) as found:
        body = found[0].ask(Command(RequestCode.ACCESS_TEST, fields=fields)).body
    verdict = json_object(body, "to ACCESS_TEST")
    if json_output:
        sys.stdout.write(json.dumps(verdict) + "\n")
    else:
        lines = [f"{'allowed' if verdict['allowed'] else 'refused'}: {action} {topic!r}"]
        lines += [f"    {in_words(verdict['reason'])}"] if verdict["reason"] else []
        lines += [f"    {verdict['rule']}"] if verdict["rule"] else []
        sys.stdout.write("\n".join([*lines, f"    decided by {verdict['by']}"]) + "\n")
    if not verdict["allowed"]:
        raise SystemExit(FAILED)


@acl.command(name="rules")
def in_force(
    *,
    count: Annotated[int, Parameter(help="Maximum number of rules to list.")] = COUNT_DEFAULT,
    json_output: Annotated[bool, Parameter(name=["--json"], negative=(), help="One JSON object per rule.")] = False,
    target: ServerTarget = HERE,
) -> None:
    """List the rules that a running installation has in force, with the file and line of each, or the user it is of."""
    with brokers(target) as found:
        rows = [row for broker in found for row in pages(broker, RequestCode.ACCESS_RULES, "rules", {}, count)]
    print_rows(rows[:count], RULE_HEADINGS, _rule_cells, json_output=json_output, empty="no rules are in force")


def _rule_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(printable(row[name]) or "-" for name in RULE_MEMBERS)
