"""The `edge` command: `main` finds the command and imports its module alone, so that `edge run` starts fast.

A module that is a command says at its top its `NAME` and one line of `HELP`, adds its arguments in
`add_arguments(parser)`, and runs in `command(args)`, which may return an exit status and whose docstring begins its
help page. Heavy imports stand inside the functions.
"""
