"""What the documents tell people to type works: every console and Python block is run, every other one is parsed.

How blocks are run, and what is changed for it, is described in `documents.py`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightmq.cli.application import application
from lightmq.configuration import load_configuration
from tests.processes.documents import DOCUMENTS, ROOT, SERVERS, Block, Command, Reader, blocks, commands

pytestmark = pytest.mark.processes
RUNNER = Path(__file__).with_name("document_snippets.py")


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


def console(document: Path) -> list[Command]:
    return [each for block in blocks(document, "console") if not block.reason for each in commands(block.text)]


def of_language(language: str) -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks(document, language)]


WITH_COMMANDS = [document for document in DOCUMENTS if console(document)]
NOT_RUN = {
    "README.md": 2,
    "docs/howto/backup-and-disk.md": 1,
    "docs/howto/bridge.md": 1,
    "docs/howto/cluster.md": 5,
    "docs/howto/console.md": 1,
    "docs/howto/decode.md": 1,
    "docs/howto/deploy.md": 5,
    "docs/howto/find-messages.md": 1,
    "docs/howto/grpc.md": 3,
    "docs/howto/install.md": 3,
    "docs/howto/lite.md": 1,
    "docs/howto/pop.md": 2,
    "docs/howto/access.md": 1,
    "docs/howto/metrics.md": 1,
    "docs/howto/operate.md": 1,
    "docs/howto/migrate.md": 3,
    "docs/howto/rocketmq.md": 3,
    "docs/howto/run-as-processes.md": 1,
    "docs/howto/self-electing-groups.md": 1,
    "docs/howto/spark.md": 4,
    "docs/howto/spark-cluster.md": 5,
    "docs/howto/store-commands.md": 1,
    "docs/howto/tls-and-websockets.md": 1,
    "docs/tutorial/README.md": 1,
    "benchmarks/README.md": 2,
}
"""Blocks that are not run; the document gives the reason for each."""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path / "home")
    yield made
    made.kill()


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=name)
def test_commands_do_what_the_document_says(document: Path, reader: Reader) -> None:
    """In order, in one folder; `lightmq up` is already running if the document does not start a server itself."""
    typed = console(document)
    if not any(shlex.split(each.text)[1:2] == [server] for each in typed for server in SERVERS):
        reader.type(Command("lightmq up"))
    for each in typed:
        reader.type(each)
    reader.leave()


@pytest.mark.spark
@pytest.mark.timeout(420)
def test_python_blocks_run_in_one_session(reader: Reader) -> None:
    """Against a server with a few messages; streams that a block starts run until they have caught up."""
    snippets = [block for block in of_language("python") if not block.reason]
    assert snippets
    reader.type(Command("lightmq up"))
    reader.type(Command("""lightmq pub -t plant/7/temp -m '{"celsius": 91.5}' --count 20"""))
    reader.type(Command("lightmq topics create metrics --batch --queues 2"))
    given = {
        "server": f"127.0.0.1:{reader.ports[9876]}",
        "mqtt_port": reader.ports[1883],
        "snippets": [(name(block.document), block.text) for block in snippets],
    }
    done = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps(given),
        cwd=reader.folder,
        env=reader.environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    reader.leave()


def test_blocks_that_are_not_run_have_a_reason() -> None:
    """The list is here so that no block stops being run by accident."""
    skipped: dict[str, int] = {}
    for block in of_language("console") + of_language("python"):
        if block.reason:
            assert len(block.reason) > 10, block
            skipped[name(block.document)] = skipped.get(name(block.document), 0) + 1
    assert skipped == NOT_RUN


def test_configuration_examples_are_valid(tmp_path: Path) -> None:
    """Every key of a TOML block exists and its value is allowed."""
    for number, block in enumerate(of_language("toml")):
        file = tmp_path / f"{number}.toml"
        file.write_text(block.text)
        assert tomllib.loads(block.text)
        load_configuration(file, {})


def test_units_start_what_exists() -> None:
    """The commands of systemd units exist, and so do their options."""
    lines = [line for block in of_language("ini") for line in re.findall(r"^ExecStart=(.*)$", block.text, re.MULTILINE)]
    assert lines
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program.endswith("/lightmq")
        application().parse_args(arguments, exit_on_error=False, print_error=False)
