"""Every command by name; only the one that is run gets imported.

Invariant: this module imports cyclopts and no large package of the product, so that ``lightmq --help`` stays cheap.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, UnusedCliTokensError

from lightmq.cli.defaults import KEY_VARIABLE, from_profile
from lightmq.cli.examples import epilogue
from lightmq.cli.outcome import MISUSED, CommandFailed, CommandMisused, fail, guarded
from lightmq.version import VERSION
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode

SERVERS = Group("Servers", sort_key=1)
CLIENTS = Group("Messages", sort_key=2)
ADMINISTRATION = Group("Administration", sort_key=3)

COMMANDS = (
    ("up", "servers:up", SERVERS, "Start controller, broker and MQTT proxy in one process."),
    ("broker", "servers:broker", SERVERS, "Start a broker."),
    ("controller", "servers:controller", SERVERS, "Start a controller, which is also the name server."),
    ("proxy", "servers:proxy", SERVERS, "Start an MQTT proxy."),
    ("grpc-proxy", "servers:grpc_proxy", SERVERS, "Start a proxy for RocketMQ's gRPC clients, see docs/howto/grpc.md."),
    ("bridge", "servers:bridge", SERVERS, "Start a bridge to other MQTT brokers, see docs/howto/bridge.md."),
    ("pub", "messages.publish:publish", CLIENTS, "Publish over MQTT."),
    ("sub", "messages.subscribe:subscribe", CLIENTS, "Subscribe over MQTT and print the messages."),
    (
        "tail",
        "messages.tail:tail",
        CLIENTS,
        "Print messages from the log, from an offset or the last ones, and follow it.",
    ),
    (
        "topics",
        "admin.topics:topics",
        CLIENTS,
        "List topics with their queues and message counts, create, change or delete one.",
    ),
    (
        "lag",
        "admin.sessions:lag",
        CLIENTS,
        "Show the lag of consumer groups, including Spark queries with a group.",
    ),
    ("sessions", "admin.sessions:sessions", CLIENTS, "List MQTT sessions with their backlog, show or end one."),
    ("clients", "admin.clients:clients", CLIENTS, "List connected MQTT clients, or disconnect one."),
    ("retained", "admin.retained:retained", CLIENTS, "List retained messages, or clear one."),
    (
        "dead-letters",
        "admin.dead_letters:dead_letters",
        CLIENTS,
        "List messages that consumer groups gave up on, or send one again.",
    ),
    ("groups", "admin.groups:groups", CLIENTS, "List consumer groups with their lag, or move one."),
    ("bench", "bench.command:bench", CLIENTS, "Put a load on a server: rates, latencies, losses."),
    ("spark", "admin.inspect_server:spark", CLIENTS, "Show the Spark queries that report to the brokers."),
    ("trace", "admin.inspect_server:trace", CLIENTS, "Follow one message from its sender to everybody it concerns."),
    ("timers", "admin.timers:timers", CLIENTS, "Show delayed messages, recall or reschedule one."),
    ("query", "messages.tail:query", CLIENTS, "Look up messages by topic and key, between two times."),
    (
        "demo",
        "demo:demo",
        ADMINISTRATION,
        "Run the demo: this machine's sensors by MQTT to Spark, and commands back.",
    ),
    ("size", "admin.size:size_command", ADMINISTRATION, "Estimate cores, memory and disk for a number of devices."),
    ("doctor", "admin.doctor:doctor", ADMINISTRATION, "Check this machine and a running broker, and suggest remedies."),
    (
        "top",
        "admin.top:top",
        ADMINISTRATION,
        "Show live what an installation does: rates, clients, lag, disk.",
    ),
    (
        "health",
        "admin.inspect_server:health",
        ADMINISTRATION,
        "Check that every broker group accepts messages.",
    ),
    ("audit", "admin.inspect_server:audit", ADMINISTRATION, "Show who did what to the installation."),
    ("cluster", "admin.cluster:cluster", ADMINISTRATION, "Show and change who is master of the broker groups."),
    ("migrate", "admin.migrate:migrate", ADMINISTRATION, "Move in from a RocketMQ cluster while it is in use."),
    ("acl", "admin.acl:acl", ADMINISTRATION, "Check an access list, explain what it decides, or ask a running server."),
    ("passwd", "admin.credentials:passwd", ADMINISTRATION, "Add, change or remove a user in a password file."),
    (
        "certs",
        "admin.credentials:certs",
        ADMINISTRATION,
        "Create certificates for TLS between the parts, signed by a private authority.",
    ),
    ("keys", "admin.credentials:keys", ADMINISTRATION, "Create access keys for the parts of an installation."),
    (
        "store",
        "admin.store:store",
        ADMINISTRATION,
        "Check and repair a broker's data directory, list and count what it holds.",
    ),
    ("profile", "admin.profile:profile", ADMINISTRATION, "Name installations, so that commands need no addresses."),
    ("completion", "completion:completion", ADMINISTRATION, "Make the shell complete commands, options and names."),
    ("console", "admin.console:console", ADMINISTRATION, "Make tokens for signing in to the web console."),
    ("config", "admin.config:config", ADMINISTRATION, "Show the configuration in force, or explain a key."),
)
ASKED_BY_SHELLS = "__complete"
"""What the scripts of `lightmq completion` call to ask for names."""
GROUPED = (
    "acl", "bench", "clients", "cluster", "config", "console", "dead-letters", "demo", "groups", "migrate", "profile",
    "retained", "sessions", "store", "topics",
)  # fmt: skip
"""Commands with commands of their own, or with their own parser."""
NAMES = tuple(name for name, *_ in COMMANDS)
EXIT_STATUS = """\
Options and examples of a command: lightmq COMMAND --help

Exit status: 0    done
             1    could not be done, or what was checked is not well
             2    the command line was not understood
             130  interrupted with Ctrl-C
"""


def _epilogue(name: str) -> dict[str, str]:
    """The examples of a command, unless it has commands of its own and says them itself."""
    return {} if name in GROUPED else {"help_epilogue": epilogue(name)}


def application() -> App:
    """The command line as cyclopts sees it."""
    app = App(
        name="lightmq",
        help="MQTT devices to Spark and back over one durable log. Start with: lightmq up",
        version=f"lightmq {VERSION}",
        version_flags=["--version", "-V"],
        config=from_profile,
        help_epilogue=EXIT_STATUS,
        help_format="plaintext",  # a Markdown renderer for one-line texts would cost a fifth of the start
    )
    for name, target, group, text in COMMANDS:
        app.command(f"lightmq.cli.{target}", name=name, group=group, help=text, **_epilogue(name))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; the answer is the exit status."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in (*NAMES, ASKED_BY_SHELLS):
        near = difflib.get_close_matches(arguments[0], NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are: {', '.join(NAMES)}."
        return fail(f"unknown command {arguments[0]}; {hint} See: lightmq --help", MISUSED)
    try:
        return guarded(lambda: _carried_out(arguments))
    except CycloptsError as error:
        reason = _explained(error, arguments)
    except CommandMisused as error:
        reason = str(error)
    return fail(f"{reason}; see: lightmq {arguments[0]} --help", MISUSED)


def _carried_out(arguments: Sequence[str]) -> None:
    """Run the command. Raises its error; of a server's refusal one that says what to do."""
    try:
        application()(list(arguments), result_action="return_value", exit_on_error=False, print_error=False)
    except Refused as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        raise CommandFailed(_denied(error.remark.removesuffix(" ''"))) from error


def _denied(said: str) -> str:
    """What to do where a key is missing, which is the commonest error of all, and where its rights do not suffice."""
    from remoting.access.key_policy import NOBODY  # only where something was refused

    if said.startswith(f"{NOBODY} "):
        return (
            f"the server asks for an access key ({said}): name its file with --access-key-file, "
            f"or put key:secret into ${KEY_VARIABLE}"
        )
    return f"not permitted: {said}; the rules are in the server's access list, see: lightmq acl test --help"


def _explained(error: CycloptsError, arguments: Sequence[str]) -> str:
    """The parser's sentence; where a verb has verbs of its own, the one that was probably meant."""
    if not isinstance(error, UnusedCliTokensError):
        return str(error).rstrip(".")
    said = f"unexpected argument {' '.join(error.unused_tokens or ())}"
    verbs = [name for name in application()[arguments[0]] if not name.startswith("-")]
    near = difflib.get_close_matches(arguments[1], verbs, n=1) if len(arguments) > 1 else []
    return f"{said}; did you mean: lightmq {arguments[0]} {near[0]}" if near else said
