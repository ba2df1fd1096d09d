"""Every example below a command's help is understood by the parser, and every command has one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest
from cyclopts import App

from lightmq.cli.application import COMMANDS, GROUPED, application, run
from lightmq.cli.examples import EXAMPLES

LINES = [line for lines in EXAMPLES.values() for line in lines]
ENDS = ("|", ">", "&&")


def words(line: str) -> list[str]:
    """The arguments of `lightmq` in a line for a shell."""
    found = shlex.split(line)
    found = found[found.index("lightmq") + 1 :]
    return found[: next((at for at, word in enumerate(found) if word in ENDS), len(found))]


def commands(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something, by its words."""
    for name in app:
        if not name.startswith("-"):
            below = list(commands(app[name], (*path, name)))
            yield from below or [(*path, name)]


@pytest.mark.parametrize("line", LINES)
def test_the_parser_understands_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTMQ_PROFILES", "none")
    application().parse_args(words(line), exit_on_error=False, print_error=False)


def test_every_command_has_one() -> None:
    given = [words(line) for line in LINES]
    for path in commands(application()):
        assert any(tuple(one[: len(path)]) == path for one in given), path
    assert set(EXAMPLES) == {name for name, *_ in COMMANDS}


@pytest.mark.parametrize(
    "command", [["pub"], ["topics"], ["topics", "create"], ["bench", "mqtt"], ["top"]], ids=" ".join
)
def test_the_help_shows_them(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    said = capsys.readouterr().out
    assert "Examples:" in said
    assert f"lightmq {' '.join(command)}" in said.partition("Examples:")[2]


def test_commands_that_say_their_examples_themselves() -> None:
    app = application()
    assert {name for name, *_ in COMMANDS if name != "demo" and list(commands(app[name]))} <= set(GROUPED)


PLAIN = {
    ("demo",), ("passwd",), ("certs",), ("keys",), ("store", "dump"), ("profile", "add"),
    ("profile", "use"), ("profile", "remove"), ("completion",),
}  # fmt: skip
"""Commands that work on files here and print a sentence, a script, or JSON anyway."""


def test_whatever_asks_or_changes_a_server_speaks_json() -> None:
    app, without = application(), set()
    for path in commands(app):
        one = app
        for name in path:
            one = one[name]
        if "--json" not in {name for argument in one.assemble_argument_collection() for name in argument.names}:
            without.add(path)
    assert without == PLAIN
