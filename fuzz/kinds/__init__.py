"""Kinds of input, one a file, found by name.

A kind has a `make_case(choose, whole, place)`, which writes a damaged input into the empty folder `place`, drawn with
`choose` from what stands in `whole`, and a `try_one(place)`, which lets the real code have it: it returns or raises an
EdgeError, and anything else is a fault. Its TRAITS say which `inputs` it begins with (fuzz/inputs.py), its `share` of
the time (default: 1) and how many `seconds` a case may take. A `prepare(whole)` is called once in each process.
"""

from __future__ import annotations

from edge.registry import Registry

KINDS = Registry(__name__, "kind of input")
