from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from lightmq.cli.application import COMMANDS, run


@pytest.mark.parametrize("target", [target for _, target, *_ in COMMANDS])
def test_every_command_can_be_imported(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(importlib.import_module(f"lightmq.cli.{module}"), name))


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name, *_ in COMMANDS)
    assert "Exit status: 0    done" in said


@pytest.mark.parametrize(
    "words",
    [
        *([name] for name, *_ in COMMANDS if name != "demo"),
        ["cluster", "remove"],
        ["topics", "create"],
        ["acl", "explain"],
    ],
    ids=" ".join,
)
def test_no_option_undoes_what_another_one_lists(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A repeatable list needs no `--empty-…`, nor a switch its `--no-…`."""
    assert run([*words, "--help"]) == 0
    said = capsys.readouterr().out
    assert "--empty-" not in said
    assert "--no-" not in said


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["publ"], "publ"),
        (["pub"], "--topic"),
        (["pub", "-t", "a", "--bogus"], "--bogus"),
        (["pub", "-t", "a", "--qos", "x"], "--qos"),
        (["pub", "-t", "a"], "--message"),
        (["pub", "-t", "a", "-m", "x", "-q", "3"], "--qos must be"),
        (["pub", "-t", "a/#", "-m", "x"], "cannot be published to"),
        (["topics", "--server", "localhost"], "host:port"),
        (["topics", "creat", "x"], "did you mean: lightmq topics create"),
        (["topics", "a", "b"], "unexpected argument b"),
        (["cluster", "statsu"], "status"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert text in said
    assert "--help" in said
    assert said.startswith("lightmq: ")


def test_help_and_version_are_cheap() -> None:
    program = (
        "import resource, sys\n"
        "from lightmq.__main__ import main\n"
        "main([sys.argv[1]])\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "heavy = sorted({'numpy', 'aiohttp', 'structlog', 'broker', 'asyncio'} & set(sys.modules))\n"
        "sys.stderr.write(f'{used.ru_utime + used.ru_stime} {heavy}')\n"
    )
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", program, option], capture_output=True, text=True, check=True)
        seconds, _, heavy = done.stderr.partition(" ")
        assert heavy == "[]"
        assert float(seconds) < 1.0  # the promise is 0.3 s; a test on a shared machine leaves room


@pytest.mark.parametrize("words", [["groups"], ["lag", "g"], ["tail", "plant/#"], ["topics"]], ids=" ".join)
def test_a_command_without_its_key_is_told_where_to_name_it(
    log_server: Any, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The commonest refusal of a secured installation is a sentence that says what to do."""
    log_server.denied = "anonymous may not locate ''"
    assert run([*words, "--server", log_server.address]) == 1
    said = capsys.readouterr().err
    assert "the server asks for an access key (anonymous may not locate): name its file with --access-key-file" in said
    assert "$LIGHTMQ_KEY" in said
    log_server.denied = "etl may not locate 'x'"
    assert run([*words, "--server", log_server.address]) == 1
    assert "not permitted: etl may not locate 'x'" in capsys.readouterr().err
