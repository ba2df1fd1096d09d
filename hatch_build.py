"""Build hook: compiles the hot loops with Cython where that is possible, and builds the pure twins alone where not.

The modules are listed in `pyproject.toml` (`[tool.hatch.build.hooks.custom] modules`); what comes out lies beside its
source, in a wheel as in an editable install, and the packages choose when they are imported. Invariant: a machine
without compiler, headers or Cython gets a working package; one line says what was built. LIGHTMQ_PURE=1 asks for that.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PURE_VARIABLE = "LIGHTMQ_PURE"
DIRECTIVES = {"language_level": 3, "embedsignature": False, "initializedcheck": False}


class CompiledCore(BuildHookInterface[Any]):
    """Adds the extension modules to wheels and editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compile in place before the files are collected."""
        if self.target_name != "wheel":
            return
        root, modules = Path(self.root), list(self.config["modules"])
        for module in modules:
            for stale in (root / module).parent.glob(f"{Path(module).stem}.*.so"):
                stale.unlink()
        if os.environ.get(PURE_VARIABLE, "") not in {"", "0"}:
            self.app.display_info(f"{PURE_VARIABLE} is set: building without the compiled core")
            return
        try:
            made = compile_modules(root, modules)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever is missing, the pure twins still work
            reason = str(error).strip().splitlines() or [type(error).__name__]
            self.app.display_warning(f"building without the compiled core, which is several times faster: {reason[-1]}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"] += [f"/{path.relative_to(root).as_posix()}" for path in made]
        self.app.display_info(f"compiled core: {len(made)} modules")


def compile_modules(root: Path, modules: list[str]) -> list[Path]:
    """Compile each module (a path below `root`) and return the extensions, which lie beside their sources."""
    from Cython.Build import cythonize
    from Cython.Compiler import Options
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    Options.docstrings = True
    before = Path.cwd()
    os.chdir(root)  # module names and include paths are taken from where the packages are
    try:
        with tempfile.TemporaryDirectory(prefix="lightmq-build-") as scratch:
            extensions = [
                Extension(
                    module.removesuffix(".py").replace("/", "."),
                    [module],
                    include_dirs=[str(root / "remoting" / "hot")],
                    extra_compile_args=["-O3"] if sys.platform != "win32" else [],
                )
                for module in modules
            ]
            sources = cythonize(
                extensions, build_dir=scratch, compiler_directives=DIRECTIVES, quiet=True, include_path=[str(root)]
            )
            command = build_ext(Distribution({"ext_modules": sources}))
            command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/objects"
            command.ensure_finalized()
            command.run()
            made = []
            for extension in sources:
                built = Path(command.get_ext_fullpath(extension.name))
                target = root / Path(*extension.name.split(".")[:-1]) / built.name
                shutil.copy2(built, target)
                target.touch()
                made.append(target)
            return made
    finally:
        os.chdir(before)
