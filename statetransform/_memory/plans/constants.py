"""Inputs of a planned function that are constants of the program around it: arrays that it closes over, under `jit`.

Compilers fold constants, and fuse what reads them in other ways than what reads inputs. An LSTM of eight steps, written
out, takes twice the bytes on an H100 if one of its matrices is a constant. So gradient steps are compiled with them.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ... import _jax

Step = Callable[..., list[Any]]


class Constants:
    """Those among the inputs of a function.

    They are held weakly: what is kept of a trace must not keep what its function closed over. One that is gone counts
    as an input.

    Args:
      inputs: of the function, where it is called. Those of what runs eagerly are no constants.
    """

    def __init__(self, inputs: Sequence[Any] = ()) -> None:
        is_staged = bool(inputs) and _jax.staging_trace() is not None
        self._arrays = {i: weakref.ref(x) for i, x in enumerate(inputs) if is_staged and _is_constant(x)}

    def known(self) -> dict[int, jax.Array]:
        """The constants by position."""
        return {i: x for i, ref in self._arrays.items() if (x := ref()) is not None}

    def digest(self) -> str:
        """Tells other constants apart."""
        found = hashlib.sha256()
        for part in _parts(self.known()):
            found.update(part)
        return found.hexdigest()

    def within(self, step: Step, avals: Sequence[Any], shardings: Sequence[Any]) -> tuple[Step, list[Any], list[Any]]:
        """A step with the constants in it, and the types and shardings of the inputs that are left."""
        known = self.known()
        left = [i for i in range(len(avals)) if i not in known]

        def run(*xs: Any) -> list[Any]:
            given = known | dict(zip(left, xs, strict=True))
            return step(*[given[i] for i in range(len(avals))])

        return run, [avals[i] for i in left], [shardings[i] for i in left]


NONE = Constants()


def _is_constant(x: Any) -> bool:
    """Whether an input is an array of numbers on one device: no tracer, and no random key, whose data takes a trace."""
    if not isinstance(x, jax.Array) or isinstance(x, _jax.Tracer) or len(x.devices()) > 1:
        return False
    return not jax.numpy.issubdtype(x.dtype, jax.dtypes.extended)


def _parts(known: dict[int, jax.Array]) -> Iterator[bytes]:
    for i, x in known.items():
        with jax.transfer_guard("allow"):  # as JAX does where it makes a constant of an array
            yield f"{i} {x.dtype} {x.shape}".encode()
            yield np.asarray(x).tobytes()
