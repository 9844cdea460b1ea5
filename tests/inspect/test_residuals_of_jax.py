"""On stateless functions the list is JAX's own."""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import re

import pytest
from jax.ad_checkpoint import print_saved_residuals

from statetransform import inspect

from .programs import PROGRAMS

SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i32": "int32", "u32": "uint32", "u8": "uint8",
         "bool": "bool", "c64": "complex64", "i8": "int8"}  # fmt: skip
# Behind these stands the inside of a loop, a branch or a compiled function, of which JAX does not tell.
DEEPER = ("output of jitted function", "output of scan", "output of cond", "output of while")


def printed(fun, *args) -> list[str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        fun(*args[:-1], **args[-1])
    return out.getvalue().splitlines()


def types(lines: list[str]) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for line in lines:
        match = re.match(r"~?([a-z0-9<>_]+)\[([0-9,]*)\]", line)
        assert match, line
        shape = tuple(int(n) for n in match[2].split(",") if n)
        found.append((SHORT.get(match[1], match[1]), shape))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_list_is_that_of_jax_and_so_are_the_lines_where_jax_tells_as_much(name):
    fun, args, kwargs = PROGRAMS[name]
    theirs = printed(print_saved_residuals, fun, *args, kwargs)
    ours = printed(inspect.print_saved_residuals, fun, *args, kwargs)
    records = inspect.residuals(fun, *args, **kwargs)
    assert types(ours) == types(theirs) == [(r.dtype, r.shape) for r in records]
    for line, other in zip(ours, theirs, strict=True):
        if not any(text in other for text in DEEPER) and not other.rstrip().endswith("from"):
            assert line == other
    for record in records:
        assert (record.bytes > 0) == (math.prod(record.shape) > 0)
        if record.kind in ("computed", "named") and name != "sine":  # jnp.sin has no line of the user's
            assert record.primitive is not None
            assert pathlib.Path(record.file).parent == pathlib.Path(__file__).parent
