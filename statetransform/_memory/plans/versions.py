"""One version of a function, with its gradient step, its graph and its plans, and all its versions together."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np

from ... import _jax
from ..._base.errors import BudgetError
from ..programs.rewrite import sliced
from ..targets import Target, target_of
from .barriers import keeps_barriers
from .blocks import Row
from .build import build
from .checkpoints import Checkpoints, Cuts, by_size, by_source, with_checkpoints
from .constants import NONE, Constants
from .devices import partitioned
from .existing import Held, scoped
from .gradient import Pattern, flattened, gradient_step, joint_step, seen_in, without_equal, without_seen
from .joint import Joint
from .opened import Opened, has_batches, scans_in, with_budget, with_inputs_in_place, with_least, with_steps
from .solve import Plan, Solver

_ENDLESS = 1 << 62  # bytes with which a loop is not opened
# Of the bytes of loops: the next way to open them. With 0.8, 48 LSTM steps within 43 % take 12.2 of the work, not 2.7.
_LESS = 0.9
_STEPS = ("dots", "dots without batch", "nothing")  # what the steps of loops may keep, keys of `POLICIES`


class Version:
    """One version of the function, with its graph and its solver.

    Args:
      closed: the closed jaxpr.
      pattern: what is differentiated.
      recipe: how it is made.
      written: the closed jaxpr of the function as it was written, if checkpoints in it are inlined in the other.
      shardings: those of the inputs, None where they are not known or in the types.
      target: the devices; None for those where the inputs are.
      constants: inputs that are constants of the program around.
    """

    def __init__(
        self,
        closed: Any,
        pattern: Pattern,
        recipe: tuple[Any, ...] = ("first",),
        written: Any = None,
        shardings: Sequence[Any] = (),
        target: Target | None = None,
        constants: Constants = NONE,
    ) -> None:
        self.closed, self.pattern, self.recipe, self.constants = closed, pattern, recipe, constants
        self.target = target_of(target, *shardings, *closed.in_avals)
        self._written, self._shardings = written, shardings
        self._held: Mapping[int, Held] = {}
        self._has_all = True

    def planned_by(self, held: Mapping[int, Held], has_all: bool) -> Version:
        """The same, planned by what its plain step holds as compiled: with all values, or those that exist."""
        recipe = "all" if has_all else "existing"
        around = self._shardings, self.target, self.constants
        found = Version(self.closed, self.pattern, (recipe,), self._written, *around)
        traced = {name: self.__dict__[name] for name in ("_seen", "_step", "step", "_flat") if name in self.__dict__}
        found.__dict__.update(traced)
        found._held, found._has_all = held, has_all
        return found

    @property
    def has_checkpoints(self) -> bool:
        """Whether the function has checkpoints as it was written, which the plans do not follow."""
        return self._written is not None

    def scoped_step(self, *xs: Any) -> list[Any]:
        """The gradient step without checkpoints, each equation under a scope with its number."""
        return scoped(self.flat)(*xs)

    @property
    def is_by_steps(self) -> bool:
        """Whether it has a checkpoint around the step of each loop, as people write it."""
        return self.recipe[0] == "loops" and self.recipe[1] in _STEPS

    @functools.cached_property
    def _seen(self) -> dict[Any, int]:
        return seen_in(self.closed)

    @functools.cached_property
    def _step(self) -> Any:
        return joint_step(self.closed, self.pattern, list(self._seen))

    @functools.cached_property
    def step(self) -> Any:
        """The closed jaxpr of the gradient step as JAX differentiates it."""
        return without_seen(self._step, len(self.pattern.outputs), len(self._seen))

    @functools.cached_property
    def _flat(self) -> tuple[Any, dict[Any, int]]:
        """The gradient step, flattened, and which equation of the function computes the value of some variables."""
        flat = without_equal(flattened(self._step))
        avals = [var.aval for var in _jax.opened(flat).invars]
        given = [*self._shardings, *[None] * (len(avals) - len(self._shardings))]
        flat = partitioned(self.target, flat, avals, given)
        n, seen = len(self.pattern.outputs), _jax.opened(flat).outvars[len(self.pattern.outputs) :]
        pairs = [(atom, t) for atom, t in zip(seen, self._seen.values(), strict=False) if isinstance(atom, jex.Var)]
        return without_seen(flat, n, len(self._seen)), dict(reversed(pairs))

    @property
    def flat(self) -> Any:
        """The closed jaxpr of the gradient step, flattened."""
        return self._flat[0]

    @property
    def is_flat(self) -> bool:
        """Whether the plain step is the flattened one, so that both compile to the same."""
        primitives = lambda step: [eqn.primitive for eqn in _jax.opened(step).eqns]
        return self._written is None and primitives(sliced(self.step)) == primitives(self.flat)

    @functools.cached_property
    def joint(self) -> Joint:
        """Both passes."""
        flat, seen = self._flat
        return build(flat, self.pattern, None, seen, self._held, self._has_all, self.target.platform != "cpu")

    @functools.cached_property
    def solver(self) -> Solver:
        """Plans for any budget."""
        return Solver(self.joint.graph, self._cuts)

    @functools.cached_property
    def _cuts(self) -> list[Cuts]:
        """The blocks that people put checkpoints around, among the nodes of the graph and among the equations."""
        graph, origins = self.joint.graph, self.joint.origins
        if not graph.primal:
            return []
        origin = [max((origins.get(v, -1) for v in graph.nodes[i].outputs), default=-1) for i in sorted(graph.primal)]
        done = np.maximum.accumulate(np.array(origin) + 1)  # equations, by forward nodes
        found = dict[tuple[int, ...], Any]()
        for blocks in self._layers:
            places = {int(np.searchsorted(done, t, "right")) for block in blocks for t in block}
            found[tuple(sorted(places - {0, len(done)}))] = blocks
        found[()] = self._whole
        for ends in by_size(Row(graph)):
            equations = sorted({0, *[int(done[end - 1]) for end in ends]})
            found.setdefault(ends, tuple(itertools.pairwise(equations)))
        return [(ends, blocks) for ends, blocks in found.items() if blocks]

    def is_by_source(self, plan: Plan) -> bool:
        """Whether a plan is one that people would write by hand: around layers of the source, or the whole function."""
        return plan.checkpoints is not None and plan.checkpoints.blocks in [*self._layers, self._whole]

    @functools.cached_property
    def _layers(self) -> list[tuple[tuple[int, int], ...]]:
        return by_source(self.closed)

    @property
    def _whole(self) -> tuple[tuple[int, int], ...]:
        return ((0, len(_jax.opened(self.closed).eqns)),)

    @property
    def takes_checkpoints(self) -> bool:
        """Whether checkpoints as people write them do something here, and nothing happens only once."""
        return keeps_barriers() and not _jax.opened(self.closed).effects

    def checkpointed(self, checkpoints: Checkpoints) -> Version:
        """With checkpoints as people write them."""
        closed = with_checkpoints(self.closed, checkpoints)
        return Version(closed, self.pattern, self.recipe, closed, self._shardings, self.target, self.constants)

    @property
    def cotangents(self) -> list[Any]:
        """The abstract values of the cotangents."""
        body = _jax.opened(self.closed)
        return [v.aval for v, active in zip(body.outvars, self.pattern.outputs, strict=True) if active]

    @property
    def avals(self) -> list[Any]:
        """Inputs, and the cotangents that are no scalars."""
        given = [var.aval for var in _jax.opened(self.closed).invars]
        return given + [aval for aval in self.cotangents if aval.shape]

    @property
    def shardings(self) -> list[Any]:
        """The shardings of these where they are known and not in the types."""
        known = self._shardings if self.pattern.lanes.count == 1 else ()
        return [*known, *[None] * (len(self.avals) - len(known))]

    def as_outermost(self, step: Callable[..., list[Any]], with_value: bool = True) -> Callable[..., list[Any]]:
        """A gradient step as `grad`, or `value_and_grad`, runs it: the cotangent of a scalar is one."""
        n, active = len(self.pattern.inputs), self.pattern.outputs
        is_scalar = [not var.aval.shape for var in _jax.opened(self.closed).outvars]

        def run(*xs: Any) -> list[Any]:
            rest = iter(xs[n:])
            cts = [next(rest) if aval.shape else _one(aval) for aval in self.cotangents]
            found = step(*xs[:n], *cts)
            outputs, gradients = list(zip(found, active, is_scalar, strict=False)), found[len(active) :]
            values = [x for x, is_active, scalar in outputs if is_active and (with_value or not scalar)]
            return [*values, *gradients, *[x for x, is_active, _ in outputs if not is_active]]

        return run

    def of_lanes(self, run: Callable[..., list[Any]]) -> tuple[Callable[..., list[Any]], list[Any]]:
        """A gradient step as all lanes of `vmap` run it together, and the types of its inputs."""
        lanes = self.pattern.lanes
        if lanes.count == 1:
            return run, self.avals
        flags = [*lanes.is_mapped, *[True] * (len(self.avals) - len(lanes.is_mapped))]
        axes = tuple(0 if flag else None for flag in flags)
        together = jax.vmap(run, in_axes=axes, axis_size=lanes.count)
        of_all = lambda aval: jax.ShapeDtypeStruct((lanes.count, *aval.shape), aval.dtype)
        return together, [of_all(aval) if flag else aval for aval, flag in zip(self.avals, flags, strict=True)]

    def plain_step(self, *xs: Any) -> list[Any]:
        """The gradient step as JAX differentiates the function as it was written, with the checkpoints in it."""
        if self._written is not None:
            return gradient_step(self._written, self.pattern)(*xs)
        return _jax.eval_jaxpr(_jax.opened(self.step), _jax.consts_of(self.step), *xs)


class Versions:
    """The versions of a function, made when they are asked for.

    Args:
      closed: the closed jaxpr.
      pattern: what is differentiated.
      written: the same as it was written, if it has checkpoints inside; they are inlined in the other one.
      shardings: those of the inputs, None where they are not known or in the types.
      target: the devices; None for those where the inputs are.
      constants: inputs that are constants of the program around.

    Attributes:
      first: as it is.
    """

    def __init__(
        self,
        closed: Any,
        pattern: Pattern,
        written: Any = None,
        shardings: Sequence[Any] = (),
        target: Target | None = None,
        constants: Constants = NONE,
    ) -> None:
        self._closed, self._pattern, self._shardings = closed, pattern, shardings
        self.first = Version(closed, pattern, written=written, shardings=shardings, target=target, constants=constants)
        self._straight: list[Version] = []
        self._opened: dict[int | str, tuple[Opened, Version] | None] = {}

    def made_by(self, recipe: tuple[Any, ...], held: Mapping[int, Held] | None = None) -> Version:
        """The one with this recipe."""
        for version in self.straight(held or {}):
            if version.recipe == recipe:
                return version
        return (self._with_loops(recipe[1]) if recipe[0] == "loops" else None) or self.first

    def straight(self, held: Mapping[int, Held]) -> list[Version]:
        """As it is, planned by the values that exist as compiled, and by all; by all where nothing is known."""
        if not self._straight:
            self._straight = [self.first.planned_by(held, all_) for all_ in (False, True)] if held else [self.first]
        return self._straight

    @functools.cached_property
    def by_steps(self) -> list[Version]:
        """With the loops as people checkpoint them: each step from its carry, or from that and its products."""
        if not scans_in(self._closed):
            return []
        found = [self._with_loops(keeps) for keeps in _STEPS if keeps != "dots" or has_batches(self._closed)]
        # If no product is needed, steps that keep products and steps that keep nothing are the same version.
        figures = lambda version: (version.solver.plain.bytes, version.joint.graph.cost)
        return list({figures(version): version for version in filter(None, reversed(found))}.values())[::-1]

    def opened(self) -> Iterator[Callable[[], Version | None]]:
        """With the loops opened with fewer and fewer bytes: fixed shares of what the plain loops keep.

        Each is made when it is asked for, and None where the loops cannot do with so little.
        """
        n = len(scans_in(self._closed))
        size = float(with_budget(self._closed, _ENDLESS, self._pattern.inputs).bytes) if n else 0.0
        while (size := _LESS * size) >= 1:
            yield functools.partial(self._with_loops, int(size) // n)
        if n:
            yield functools.partial(self._with_loops, "least")

    @functools.cached_property
    def _to_open(self) -> Any:
        return with_inputs_in_place(self._closed, self._pattern.inputs)

    def _with_loops(self, how: int | str) -> Version | None:
        """With so many bytes for each loop, the fewest, or what its steps keep; None if one cannot do with that."""
        found = self._opened_with(how)
        return None if found is None else found[1]

    def _opened_with(self, how: int | str) -> tuple[Opened, Version] | None:
        if how not in self._opened:
            opened = self._make(how)
            alike = [some for some in self._opened.values() if some and opened and some[0].key == opened.key]
            known = alike[0] if alike else None
            if opened is not None and known is None:
                around = self._shardings, self.first.target, self.first.constants
                version = Version(opened.jaxpr, self._pattern, ("loops", how), None, *around)
                known = opened, version
            self._opened[how] = known
        return self._opened[how]

    def _make(self, how: int | str) -> Opened | None:
        closed, moves = self._to_open, self._pattern.inputs
        if how in _STEPS:
            return with_steps(closed, str(how))
        if how == "least":
            return with_least(closed, moves)
        try:
            return with_budget(closed, int(how), moves) if int(how) > 0 else None
        except BudgetError:
            return None


def _one(aval: Any) -> Any:
    return jax.lax.full_like(_jax.zeros(aval), 1)
