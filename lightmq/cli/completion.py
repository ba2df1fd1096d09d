"""``lightmq completion``: the script by which a shell completes commands, options, choices and names.

The script is made from the parser of the commands itself, so it knows what they know; names of topics, groups, clients
and brokers are asked for at every TAB (`completing.py`). Invariant: standard output has the script and nothing else.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

HINTS = {
    "bash": "to load it in every shell: lightmq completion bash > ~/.local/share/bash-completion/completions/lightmq",
    "zsh": "to load it in every shell: lightmq completion zsh > a folder of $fpath, as _lightmq",
    "fish": "to load it in every shell: lightmq completion fish > ~/.config/fish/completions/lightmq.fish",
}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell to make it for.")],
) -> None:
    """Print the script that makes a shell complete commands, options, choices, and names the server knows."""
    from lightmq.cli.application import application

    if sys.stdout.isatty():
        sys.stderr.write(f"{HINTS[shell]}\n")
    sys.stdout.write(application().generate_completion(prog_name="lightmq", shell=shell))
