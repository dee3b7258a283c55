"""The `edge` command: `main` finds the command and imports its module alone, so that `edge run` starts fast.

Each module holds one command: a function `command` with typer annotations, `app`, a `typer.Typer` with commands of its
own, or `execute`, which reads the arguments itself. Heavy imports stand inside the functions.
"""
