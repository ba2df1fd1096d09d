"""Run one update of the pipeline in `transformations/`: tables and checkpoints are kept below `--folder`.

python examples/pipeline/run.py [--server HOST:PORT] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from lightmq.spark import prepare_environment
from lightmq.spark_session import ensure_java

TOO_SLOW = "failed to connect back"
"""Spark's message when one of its Python processes took more than ten seconds to start, on a busy machine."""
RUNS_MAX = 5

HERE = Path(__file__).resolve().parent
SPARK_HOME = Path(pyspark.__file__).parent


def write_specification(folder: Path, server: str) -> Path:
    """Write the pipeline's specification (JSON is YAML) and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    transformations = folder / "transformations"
    if not transformations.exists():
        transformations.symlink_to(HERE / "transformations")
    found = folder / "spark-pipeline.yml"
    specification = {
        "name": "readings",
        "storage": (folder / "storage").as_uri(),
        "libraries": [{"glob": {"include": "transformations/**"}}],
        "configuration": {"lightmq.server": server},
    }
    found.write_text(json.dumps(specification, indent=2))
    return found


def run_update(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, bool]:
    """Run one update and show its output; (exit status, whether Spark did not wait for one of its processes)."""
    was_slow = False
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as update:
        assert update.stdout is not None
        for line in update.stdout:
            print(line, end="", flush=True)
            was_slow = was_slow or TOO_SLOW in line
    return update.returncode, was_slow


def main() -> int:
    """Run `spark-pipelines`, again from its checkpoints where it failed for the moment; its exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="127.0.0.1:9876")
    parser.add_argument("--folder", default="out/pipeline")
    options = parser.parse_args()
    folder = Path(options.folder).resolve()
    specification = write_specification(folder, options.server)
    ensure_java()
    prepare_environment("local[*]")
    command = [str(SPARK_HOME / "bin" / "spark-pipelines"), "run", "--spec", str(specification)]
    environment = os.environ | {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
    for run in range(1, RUNS_MAX + 1):
        status, was_slow = run_update(command, folder, environment)
        if not status or not was_slow or run == RUNS_MAX:
            break
        print(f"A Python process of Spark started too slowly: run {run + 1} of at most {RUNS_MAX}.", flush=True)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
