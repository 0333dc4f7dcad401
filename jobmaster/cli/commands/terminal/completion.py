"""``jobmaster completion``: the script that makes a shell complete commands, options and values."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    Completed are commands, options, their words, and names that the master knows: handlers, lanes, agents, schedules.
    A master that does not answer within 0.3 s gives none.

    \b
    Examples:
      jobmaster completion bash > ~/.local/share/bash-completion/completions/jobmaster
      jobmaster completion zsh > ~/.zfunc/_jobmaster
      jobmaster completion fish > ~/.config/fish/completions/jobmaster.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click has these shells"
    program = ctx.find_root()
    click.echo(kind(program.command, {}, "jobmaster", "_JOBMASTER_COMPLETE").source())
