"""The command line: what there is, and nothing of it loaded.

This is no part of the package: `import pullback` takes half a second, which `--help`, `--version`
and the completion of a name need not wait for. A command's module is loaded when it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

HOME = "pullback.cli"
COMMANDS = {
    "bench": "Measure pullback beside PyTorch, torch.compile, JAX and NumPy, as ARGUMENTS say.",
    "build": "Build SOURCE: the program of a script, or an operation of a file.toml, for C.",
    "cache": "The cache of compiled code.",
    "check": "Check every derivative of WHAT; exit code 1 where one is wrong.",
    "compile": "Compile the operation of a TOML file and try it beside the reference.",
    "completion": "Print the script that completes `pullback` in SHELL.",
    "demo": "Show what pullback does with three lines: derive, fuse, check and time them.",
    "doctor": "Tell what is installed, what it runs on, and whether it works.",
    "eject": "Write WHAT and its derivative as one file of C, or Triton, that needs no pullback.",
    "env": "Every environment variable, with its default and what it does.",
    "explain": "Show what the compiler makes of WHAT, at every stage or at one.",
    "generate": "Go on with a text by the language model in MODEL, a GGUF file.",
    "new": "Write a folder NAME: an operation, its test, a benchmark, README and pyproject.toml.",
    "prebuild": "Compile what PATHS need to run, so that their first run compiles nothing.",
    "profile": "Run SCRIPT with its ARGUMENTS, then show the launches of its jitted functions.",
    "resume": "Go on from FILE, which PULLBACK_DUMP wrote and you may have edited, and run it.",
    "run": "Run FILE, a daten program: modules, parameters and what is computed, in one text.",
    "test-backend": "Try NAME, a backend or a file of one, on every primitive, form and layout.",
    "test-runtime": "Another name of test-backend.",
    "train": "Train a character GPT as one compiled program, then let it write.",
    "tune": "Measure other schedules for the kernels of WHAT; keep what is faster.",
    "view": "Write a page of what becomes of WHAT: definitions, kernels, code, memory, time.",
}
MODULES = {
    "train": "train_command",
    "compile": "compile_file",
    "test_runtime": "test_backend",
}  # others are named like their command


class Deferred(click.Command):
    """A command by its name and what it does; the rest is loaded when it is used."""

    @property
    def whole(self) -> click.Command:
        """The command itself."""
        name = str(self.name).replace("-", "_")
        home = importlib.import_module(f"{HOME}.{MODULES.get(name, name)}")
        own: click.Command = getattr(home, name)
        return own

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """The context of the command itself."""
        return self.whole.make_context(*args, **settings)


@click.group(context_settings={"max_content_width": 100})
@click.version_option(package_name="pullback", message="pullback %(version)s")
def commands() -> None:
    """A deep-learning compiler: index expressions, their gradients, whole programs.

    Every command has --help with an example, --json and --quiet. Exit codes: 0 good, 1 something
    that was looked for is wrong, 2 wrong use.
    """


for name, what in COMMANDS.items():
    commands.add_command(Deferred(name, help=what))


def main() -> None:
    """Run the command line."""
    commands(prog_name="pullback")


if __name__ == "__main__":
    main()
