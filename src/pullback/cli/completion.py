"""`pullback completion`: what a shell needs to complete commands, options and files."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from pullback.cli.command import Output, command

SHELLS = ("bash", "zsh", "fish")
PROGRAM = "pullback"
EXAMPLE = """\
eval "$(pullback completion bash)"    # in ~/.bashrc
eval "$(pullback completion zsh)"     # in ~/.zshrc
pullback completion fish > ~/.config/fish/completions/pullback.fish"""


@command(example=EXAMPLE)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(out: Output, shell: str) -> None:
    """Print the script that completes `pullback` in SHELL."""
    script = script_of(shell, click.get_current_context().find_root().command)
    out.show(script)
    out.tell(shell=shell, script=script)


def script_of(shell: str, commands: click.Command) -> str:
    """The script; the shell then asks `pullback` itself what fits."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    made = kind(commands, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    return ShellComplete.source(made)  # bash's own asks bash for its version first
