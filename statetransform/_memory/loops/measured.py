"""What the steps of a loop need on a target, as its compiler says.

The carries that a sweep stores are counted; what the gradient of a step needs besides them depends on what a compiler
fuses, and on a TPU the size of an array is that of its tiles. So the gradient of a short loop of such steps is
compiled, once for each step and target: alone, a step may work in the memory of its results. The answers are kept for
the process. On the default backend JAX's compilation cache keeps the programs.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..._jax import is_differentiable
from ..programs.sizes import local_shape, nbytes
from ..targets import Target, compile_for
from . import sweep
from .arrays import Leaves, empty, pick
from .step import Selected, Step

logger = logging.getLogger("statetransform")


def row_bytes(target: Target, avals: Sequence[Any], shardings: Sequence[Any] = ()) -> int:
    """The bytes that rows of arrays of some types take on one device, each."""
    local = [*map(_local, avals, [*shardings, *[None] * (len(avals) - len(shardings))])]
    if target.platform != "tpu" or not local:
        return sum(map(nbytes, local))
    return _in_tiles(target, tuple((some.shape, some.dtype) for some in local))


@functools.lru_cache(256)
def _in_tiles(target: Target, local: tuple[Any, ...]) -> int:
    rows = [(1, 1, *shape) if len(shape) == 1 else (1, *shape) for shape, _ in local]
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, (_, dtype) in zip(rows, local, strict=True)]
    return compile_for(target, lambda *xs: [], structs).argument or sum(map(nbytes, structs))


def _local(aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    shape = local_shape(aval) if sharding is None else sharding.shard_shape(aval.shape)
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def working_bytes(
    target: Target, step: Step, text: str, selected: Selected, inputs: tuple[Leaves, Leaves, Leaves], places: Any
) -> int | None:
    """Temporary bytes of a short loop's gradient without the stored carries; None where the compiler does not say.

    Args:
      text: that of the step, by which answers are kept.
      inputs: abstract values of constants, carry and input.
      places: the shardings of these, where they are known.
    """
    avals = [aval for group in inputs for aval in group]
    key = text, selected, target.fingerprint, tuple(map(str, avals)), tuple(places)
    if key not in _known:
        if len(_known) >= _KEPT:
            _known.pop(next(iter(_known)))
        _known[key] = _compiled(target, step, selected, inputs, places)
    return _known[key]


_known: dict[Any, int | None] = {}
_KEPT = 1024
_STEPS, _STORED = 16, 4  # of the short loop: with less of them the compilers find a shorter way


def _compiled(target: Target, step: Step, selected: Selected, inputs: Sequence[Leaves], places: Sequence[Any]) -> Any:
    consts, carry, x = inputs
    short = dataclasses.replace(step, k=_STORED, block=1, length=_STEPS, avals=tuple(carry))
    xs = jax.make_jaxpr(lambda: empty(_STEPS, x))().out_avals
    groups = np.cumsum([len(consts), len(carry)])

    def gradient(*leaves: Any) -> Leaves:
        consts, init, xs = ([*leaves[i:j]] for i, j in zip([0, *groups], [*groups, None], strict=True))
        after, ys, saved = sweep.forward(short, selected, consts, init, xs)
        ct_carry = [2 * leaf for leaf in pick(after, selected.carry)]
        is_live = [True] * len(ct_carry)
        ct_ys = [y if is_differentiable(y) else None for y in ys]
        ct_consts, ct_carry, ct_xs = sweep.backward(short, selected, consts, xs, saved, ct_carry, ct_ys, is_live)
        # What is returned takes no temporary bytes.
        return [*ys, *ct_consts, *[ct.sum() for ct in ct_carry], *ct_xs]

    try:
        found = compile_for(target, gradient, [*consts, *carry, *xs], places[: groups[1]], is_fast=True)
    except Exception as error:  # what cannot be compiled by itself
        logger.info("a loop of a few steps cannot be compiled alone: %s", error)
        return None
    needed, where = step.needed(selected), places[groups[0] : groups[1]]
    stored = _STORED * row_bytes(target, pick(carry, needed), pick(where, needed))
    return None if found.temporary is None else found.temporary - stored
