"""The scripts of `lightmq completion`, run by real shells, with names from a real server (lightmq.cli.completing)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightmq.cli.application import application, run


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    app = application()
    return {shell: app.generate_completion(shell=shell) for shell in ("bash", "zsh", "fish")}  # type: ignore[arg-type]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One where `lightmq` is this program, and no profile is."""
    program = tmp_path / "lightmq"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lightmq "$@"\n')
    program.chmod(0o755)
    here = Path(__file__).resolve().parents[4]
    own = {name: text for name, text in os.environ.items() if not name.startswith("LIGHTMQ_")}
    path = f"{tmp_path}:{os.environ['PATH']}"
    return own | {"PATH": path, "PYTHONPATH": str(here), "LIGHTMQ_PROFILES": str(tmp_path / "p.toml")}


def offered(script: str, typed: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    """What bash offers for the last word."""
    (folder / "script").write_text(script)
    line = (
        f"source {shlex.quote(str(folder / 'script'))}; COMP_WORDS=({' '.join(map(shlex.quote, typed))}); "
        f"COMP_CWORD={len(typed) - 1}; _lightmq; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", line],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("top", ["topics", "top"]),
        ("topics de", ["delete"]),
        ("cluster mem", ["members"]),
        ("pub --ret", ["--retain"]),
        ("completion f", ["fish"]),
        ("acl test --action sub", ["subscribe"]),
    ],
)
def test_bash_completes_what_the_parser_knows(
    scripts: dict[str, str], environment: dict[str, str], tmp_path: Path, typed: str, expected: list[str]
) -> None:
    assert sorted(offered(scripts["bash"], ["lightmq", *typed.split()], environment, tmp_path)) == sorted(expected)


def test_bash_completes_names_that_the_server_knows(
    scripts: dict[str, str], environment: dict[str, str], tmp_path: Path, log_server: Any
) -> None:
    names = ("plant", "plan b", "office")
    log_server.topics_body = json.dumps({"topics": [{"topic": name, "queues": []} for name in names]}).encode()
    typed = ["lightmq", "topics", "delete", "--server", log_server.address, "plant"]
    assert offered(scripts["bash"], typed, environment, tmp_path) == ["plant"]
    by_variable = environment | {"LIGHTMQ_SERVER": log_server.address}
    assert offered(scripts["bash"], ["lightmq", "topics", "delete", "o"], by_variable, tmp_path) == ["office"]
    log_server.groups_body = json.dumps({"groups": [{"name": "billing"}], "next": ""}).encode()
    assert offered(scripts["bash"], ["lightmq", "groups", "skip", "b"], by_variable, tmp_path) == ["billing"]
    assert offered(scripts["bash"], ["lightmq", "cluster", "elect", "b"], by_variable, tmp_path) == ["broker-a"]


def test_without_a_server_nothing_is_offered(
    scripts: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    nowhere = environment | {"LIGHTMQ_SERVER": "127.0.0.1:1"}
    assert offered(scripts["bash"], ["lightmq", "topics", "delete", "o"], nowhere, tmp_path) == []


def test_profiles_are_offered(scripts: dict[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[profiles.plant]\nserver = 'a:1'\n")
    file.chmod(0o600)
    assert offered(scripts["bash"], ["lightmq", "profile", "use", "p"], environment, tmp_path) == ["plant"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed: apt-get install fish")
def test_fish(scripts: dict[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text(scripts["fish"])
    line = f"source {tmp_path / 'script'}; complete -C 'lightmq cluster mem'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", line], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.startswith("members")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: apt-get install zsh")
def test_zsh(scripts: dict[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    """It loads as a function of the completion system and is that of `lightmq`."""
    (tmp_path / "_lightmq").write_text(scripts["zsh"])
    loaded = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -D -u"
    line = f"{loaded}; print ${{_comps[lightmq]}}; autoload +X _lightmq"
    done = subprocess.run(
        ["zsh", "-f", "-c", line], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("_lightmq", "")


def test_the_command_prints_the_script_and_nothing_else(
    scripts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", "bash"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (scripts["bash"], "")
    assert run(["completion", "csh"]) == 2
