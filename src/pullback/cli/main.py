"""The command line: all commands in one group."""

from __future__ import annotations

import click

from pullback.cli.bench import bench
from pullback.cli.cache import cache
from pullback.cli.check import check
from pullback.cli.command import Commands
from pullback.cli.completion import completion
from pullback.cli.demo import demo
from pullback.cli.doctor import doctor
from pullback.cli.explain import explain
from pullback.cli.new import new
from pullback.cli.profile import profile
from pullback.cli.resume import resume
from pullback.cli.train_command import train
from pullback.cli.tune import tune
from pullback.cli.view import view


@click.group(cls=Commands, context_settings={"max_content_width": 100})
@click.version_option(package_name="pullback", message="pullback %(version)s")
def commands() -> None:
    """A deep-learning compiler: index expressions, their gradients, whole programs.

    Every command has --help with an example, --json and --quiet. Exit codes: 0 good, 1 something
    that was looked for is wrong, 2 wrong use.
    """


COMMANDS = (
    bench,
    cache,
    check,
    completion,
    demo,
    doctor,
    explain,
    new,
    profile,
    resume,
    train,
    tune,
    view,
)
for each in COMMANDS:
    commands.add_command(each)


def main() -> None:
    """Run the command line."""
    commands(prog_name="pullback")
