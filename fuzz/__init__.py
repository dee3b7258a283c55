"""Damaged and hostile inputs by the thousand: each ends in a result or in one sentence, in bounded time and memory.

    python -m fuzz                                        every kind of input, for some minutes
    python -m fuzz --kind graphs --seed 123 --case 45     one case again

A kind of input is a file in `fuzz/kinds`; `fuzz/run.py` starts a process for it and watches that. Nothing of this is
installed.
"""
