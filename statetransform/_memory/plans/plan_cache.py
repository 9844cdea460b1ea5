"""What was found about gradient steps: the bytes of the plain one, and plans with what they compile to.

A step is known by its jaxpr, the target and the versions, so that another budget for the same function does not
compile the plain step again. With JAX's folder for compiled programs (`jax_compilation_cache_dir`) it is kept there,
and another process plans and compiles nothing. A plan is a sequence of nodes of a graph that is made of the jaxpr, so
the values are right, whatever a file says; a plan that does not belong to the graph is left out.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex

from ... import _jax
from ..targets import Target, target_of
from .checkpoints import Checkpoints
from .existing import Held
from .solve import Curve, Plan
from .tricks import switched_off

logger = logging.getLogger("statetransform")

_MOST = 64  # steps that are known at a time
_TRIED = 64  # plans that are kept for each


@dataclasses.dataclass(frozen=True)
class MeasuredPlan:
    """A plan with its figures.

    Attributes:
      recipe: which version of the function it is for.
      sequence: the nodes.
      checkpoints: those that people write by hand to have the plan; None where the plan is emitted.
      planned: its bytes.
      over_plain: operations over those of the plain step.
      bytes: temporary bytes of the compiled step; None if they could not be read.
      alone: of what JAX differentiates, the same without the value of the function; None where that was not compiled.
    """

    recipe: tuple[Any, ...]
    sequence: tuple[int, ...]
    checkpoints: Checkpoints | None
    planned: int
    over_plain: float
    bytes: int | None
    alone: int | None = None

    @property
    def compiled(self) -> int | None:
        """The more of both, as far as they are known."""
        return None if self.bytes is None else max(self.bytes, self.alone or 0)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from other plans of the same function."""
        return self.recipe, self.sequence, self.checkpoints


class Known:
    """What is known about one gradient step.

    Args:
      file: where it is kept; None for nowhere.

    Attributes:
      plain, plain_alone: temporary bytes of the compiled plain step, with the value of the function and without.
      flat: those of the plain step without calls and checkpoints, of which `held` is read.
      held: what each equation of the plain step holds as compiled, by number; None if it was not read.
      answers: the plan for each budget.
      tried: the last plans that were compiled, by their keys.
      curves, rated, over_plain: plans that were found, not in the file: a curve for each version; those by hand, and
        with the fewest bytes, with their figures; the operations of each over those of the plain step.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.plain: int | None = None
        self.plain_alone: int | None = None
        self.flat: int | None = None
        self.answers: dict[int, MeasuredPlan] = {}
        self.held: dict[int, Held] | None = None
        self.tried: dict[Any, MeasuredPlan] = {}
        self.curves: dict[Any, Curve] = {}
        self.rated: dict[Any, list[tuple[Plan, float, int]]] = {}
        self.over_plain: dict[Any, float] = {}
        if file is not None:
            self._read(file)

    def add(self, record: MeasuredPlan) -> None:
        """A plan that was compiled; this is written down with all answers."""
        self.tried.pop(record.key, None)
        self.tried[record.key] = record
        while len(self.tried) > _TRIED:
            del self.tried[next(iter(self.tried))]
        self.write()

    def _read(self, file: Path) -> None:
        try:
            found = json.loads(file.read_text())
            by_hand = lambda row: row and Checkpoints(tuple(map(tuple, row[0])), row[1])
            record = lambda row: MeasuredPlan(tuple(row[0]), tuple(row[1]), by_hand(row[2]), *row[3:])
            self.plain, self.plain_alone, self.flat = found["plain"], found["plain_alone"], found["flat"]
            self.answers = {int(budget): record(row) for budget, row in found["answers"].items()}
            self.tried = {some.key: some for some in map(record, found["tried"])}
            self.held = None if found["held"] is None else {int(i): Held(*row) for i, row in found["held"].items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("what is known about a gradient step cannot be read from %s: %s", file, error)

    def write(self) -> None:
        """Keeps all of it in the file."""
        if self._file is None:
            return
        row = lambda some: list(dataclasses.astuple(some))
        answers = {budget: row(some) for budget, some in self.answers.items()}
        found = {"plain": self.plain, "plain_alone": self.plain_alone, "flat": self.flat, "answers": answers}
        found["tried"] = list(map(row, self.tried.values()))
        found["held"] = None if self.held is None else {i: row(some) for i, some in self.held.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._file.parent, delete=False) as file:
                json.dump(found, file)
            os.replace(file.name, self._file)  # other processes read all of it, or what was there before
        except OSError as error:
            logger.warning("what is known about a gradient step cannot be kept in %s: %s", self._file, error)


_lock = threading.Lock()
_known: collections.OrderedDict[tuple[str, Path | None], Known] = collections.OrderedDict()


def known_of(step: Any, written: Any = None, around: Sequence[Any] = (), target: Target | None = None) -> Known:
    """What is known about a gradient step.

    Args:
      step: its closed jaxpr.
      written: the closed jaxpr of the function as it was written, if that has checkpoints, which the step has not.
      around: what the compiled step depends on besides: the shardings of the inputs, the lanes, constants.
      target: what it is compiled for.
    """
    known_by = [step] if written is None else [step, written]
    key, folder = fingerprint(target_of(target), around, *known_by), folder_for_programs()
    with _lock:
        if (key, folder) not in _known:
            file = None if folder is None else folder / "statetransform" / f"{key}.json"
            _known[key, folder] = Known(file)
        _known.move_to_end((key, folder))
        while len(_known) > _MOST:
            _known.popitem(last=False)
        return _known[key, folder]


def folder_for_programs() -> Path | None:
    """JAX's folder for compiled programs, if there is one on a disk."""
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # defined at import
    return None if not folder or "://" in folder else Path(folder)


@functools.cache
def _code() -> str:
    """Tells planners apart, so that a change of this package does not find what another one planned."""
    package = Path(__file__).parents[2]  # loops, schedules, costs and what is tried come from all of it
    files = sorted([*(package / "_memory").rglob("*.py"), *(package / "_jax").rglob("*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def fingerprint(target: Target, around: Sequence[Any], *closed: Any) -> str:
    """A text that is the same in every process for the same target, surroundings, jaxprs and versions."""
    parts = [target.fingerprint, metadata.version("jax"), *map(str, around), _code(), *switched_off()]
    for one in closed:
        _add(parts, _jax.opened(one))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _add(parts: list[str], jaxpr: Any) -> None:
    numbers: dict[Any, int] = {}

    def name(atom: Any) -> str:
        if isinstance(atom, jex.Literal):
            return f"{atom.val}:{atom.aval}"
        return str(numbers.setdefault(atom, len(numbers)))

    typed = lambda vs: " ".join(f"{name(v)}:{v.aval}" for v in vs)
    parts += [typed(jaxpr.constvars), typed(jaxpr.invars)]
    for eqn in jaxpr.eqns:
        parts += [eqn.primitive.name, " ".join(map(name, eqn.invars)), typed(eqn.outvars)]
        for key, value in sorted(eqn.params.items()):
            parts.append(key)
            for some in value if isinstance(value, (tuple, list)) else [value]:
                if _jax.is_jaxpr(some):
                    _add(parts, _jax.opened(some))
                else:
                    parts.append(_text(some))
    parts.append(" ".join(map(name, jaxpr.outvars)))


def _text(value: Any) -> str:
    """A parameter of an equation; sets have another order in each process, and objects another address."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if type(value) in (tuple, list):
        return f"({', '.join(map(_text, value))})"
    if type(value) is dict:
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(some)}' for key, some in value.items()))}}}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
