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

from lightmq.jvm import ensure_java
from lightmq.spark import prepare_environment

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


def main() -> int:
    """Run `spark-pipelines`; its exit status."""
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
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
