"""The programs among which a budget chooses, for one function, what is differentiated, and one target.

They are the same for every budget, and what is expected of each does not depend on what was asked before. A budget
looks at those that are expected within it, the least work first, and takes the first that is within it as compiled. A
smaller budget looks at fewer of them. So a larger budget is never worse than a smaller one.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from .barriers import keeps_barriers
from .emit import Emitted, whole
from .plan_cache import Known
from .simulate import profile, split_of
from .solve import Curve, Plan, unbeaten
from .versions import Version

# Nodes of all values, up to which plans are made of these as well, not of those alone that exist. A stencil that is
# unrolled needs it, as each of its steps is one fusion: without, it takes 1.10 of the work in place of 1.005. ViT-B has
# 1,650, which take 20 seconds more, and no plan was better.
_MANY = 1000
# Of the plain step's work: forms by hand that keep products by one policy differ by a hundredth of that. Each of BERT's
# takes the H100's compiler 100 seconds (`benchmarks/bert.py`), and six ways to cut a U-Net into blocks compile to the
# same bytes.
_ALIKE = 1e-3


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A program, with what is expected of it.

    Attributes:
      version: of the function.
      plan: the plan.
      over_plain: operations over those of the plain step.
      at_best: the bytes that one by hand may compile to, as compilers fuse what a block computes again. N bodies on
        the CPU take a third of what is planned. What is kept between the passes is there in any case.
    """

    version: Version
    plan: Plan
    over_plain: float
    at_best: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from others of the same function."""
        return self.version.recipe, self.plan.sequence, self.plan.checkpoints

    @property
    def order(self) -> tuple[Any, ...]:
        """The least work first; of equal work what compiles faster, and then the fewest bytes."""
        return self.over_plain, self.plan.checkpoints is None, self.plan.bytes, self.plan.sequence

    @functools.cached_property
    def program(self) -> Emitted | Version:
        """It as programs: both passes, or a function that JAX differentiates."""
        version = self.version
        if self.plan.checkpoints is not None:
            return version.checkpointed(self.plan.checkpoints)
        if version.is_by_steps and self.plan.sequence == version.solver.plain.sequence:
            return version  # nothing is recomputed besides: the program that people write
        return Emitted(version.joint, self.plan.sequence)

    @property
    def has_value(self) -> bool:
        """Whether its step computes the value of the function in any case; not where JAX differentiates."""
        return keeps_barriers() and isinstance(self.program, Emitted)

    @property
    def step(self) -> tuple[Any, Version]:
        """The gradient step, and the version whose inputs it has."""
        program = self.program
        if isinstance(program, Version):
            return program.plain_step, program
        return whole(program, self.version.joint.n_inputs), self.version


Rated = tuple[Plan, float, int]  # with the other figures of a candidate


class Candidates:
    """The programs for one gradient step.

    Args:
      straight: the versions of the function without loops opened, with a curve of plans each.
      by_steps: those with the loops as people checkpoint them.
      opened: what makes those with the loops opened with fewer and fewer bytes, None where these are too few; the last
        one makes that with the fewest.
      work: operations of the plain step.
      known: what is known of the step from another budget: curves, and plans with their figures.
    """

    def __init__(
        self,
        straight: list[Version],
        by_steps: list[Version],
        opened: list[Callable[[], Version | None]],
        work: float,
        known: Known,
    ) -> None:
        self._of_all, self._by_steps, self._opened = straight[-1], by_steps, opened
        self._straight = [straight[0], *[some for some in straight[1:] if len(some.joint.graph.nodes) <= _MANY]]
        self._work = max(work, 1e-9)
        self._known = known
        self._found: dict[Any, list[Candidate]] = {}

    def _candidates(self, kind: str, version: Version, rated: Callable[[Version], Iterator[Rated]]) -> list[Candidate]:
        """Those of a kind and a version, the least work first; their figures are the same for each budget."""
        key = kind, version.recipe
        if key not in self._found:
            if key not in self._known.rated:
                self._known.rated[key] = list(rated(version))
            found = [Candidate(version, *figures) for figures in self._known.rated[key]]
            self._found[key] = sorted(found, key=lambda some: some.order)
        return self._found[key]

    def curve(self, version: Version) -> Iterator[Candidate]:
        """The plans of one version, those with the least work and the most bytes first, made as they are asked for."""
        made = (
            Candidate(version, *self._emitted(version, plan)) for plan in self._curve(version).plans(version.solver)
        )
        return unbeaten(made, lambda some: (some.plan.bytes, some.over_plain))

    def _curve(self, version: Version) -> Curve:
        curves = self._known.curves
        return curves.get(version.recipe) or curves.setdefault(version.recipe, Curve(version.solver))

    def _emitted(self, version: Version, plan: Plan, at_best: int = 0) -> Rated:
        found, key = self._known.over_plain, (version.recipe, plan.sequence)
        if key not in found:
            found[key] = Emitted(version.joint, plan.sequence).cost / self._work
        return plan, found[key], at_best

    def by_hand(self) -> list[Candidate]:
        """The checkpoints that people write by hand, the least work first."""
        found = self._candidates("by hand", self._straight[0], self._rated_by_hand)
        return [some for some in found if not any(_is_instead_of(other, some) for other in found)]

    def _rated_by_hand(self, version: Version) -> Iterator[Rated]:
        plans = version.solver.by_hand if version.takes_checkpoints else []
        # With all values as nodes nothing is counted that JAX does not write down.
        of_all = {plan.checkpoints: plan for plan in self._of_all.solver.by_hand}
        for plan in filter(version.is_by_source, plans):
            same = of_all.get(plan.checkpoints, plan)
            at_best = min(_kept(version, plan), _kept(self._of_all if same is not plan else version, same))
            yield plan, same.cost / self._work, at_best

    def within(self, budget: int) -> Iterator[Candidate]:
        """Those that are expected within a budget, the least work first."""
        ways = [self._of_curve_within(version, budget) for version in (*self._straight, *self._by_steps)]
        ways.append(some for some in self.by_hand() if some.at_best <= budget)
        ways.append(self._within_opened(budget))
        return heapq.merge(*ways, key=lambda some: some.order)

    def _of_curve_within(self, version: Version, budget: int) -> Iterator[Candidate]:
        return (some for some in self.curve(version) if some.plan.bytes <= budget)

    def _within_opened(self, budget: int) -> Iterator[Candidate]:
        """Of loops by a schedule: fewer bytes take more work, so that the next version is made when it is asked for.

        The first one that is within the budget without a plan is looked for by halving. A larger budget finds the same
        one or one before it, and all that follow. Before it are those that a plan brings within the budget.
        """
        fits = lambda make: (version := make()) is None or version.solver.plain.bytes <= budget
        first = bisect.bisect_left(self._opened[:-1], True, key=fits)
        within = lambda version: list(self._of_curve_within(version, budget))
        made = itertools.takewhile(lambda version: version is not None, (make() for make in self._opened[first:-1]))
        last = (make() for make in self._opened[-1:])
        above = list(itertools.takewhile(bool, (within(make()) for make in reversed(self._opened[:first]))))
        for version in itertools.chain(made, last):
            yield from sorted([*itertools.chain(*above), *within(version)], key=lambda some: some.order)
            above = []

    def least(self) -> list[Candidate]:
        """Those with the fewest bytes, of each kind."""
        versions = [*self._straight, *self._by_steps, *[make() for make in self._opened[-1:]]]
        found = [some for version in versions for some in self._candidates("least", version, self._rated_least)]
        return [*found, *sorted(self.by_hand(), key=lambda some: some.plan.bytes)[:1]]

    def _rated_least(self, version: Version) -> Iterator[Rated]:
        # Where loops are opened, what is recomputed besides is little.
        is_opened = version.recipe[0] == "loops"
        plans = (
            [some.plan for some in self.curve(version)][-1:]
            if is_opened
            else self._curve(version).least(version.solver)
        )
        return (self._emitted(version, plan, _kept(version, plan)) for plan in plans)


def _is_instead_of(some: Candidate, other: Candidate) -> bool:
    """Whether both keep products by the same policy by hand, and the second has no fewer bytes, planned or kept.

    Then it compiles to no fewer, for no less work to speak of.
    """
    own, its = some.plan.checkpoints, other.plan.checkpoints
    if own is None or its is None or own.policy != its.policy or own.policy == "nothing":
        return False
    is_no_worse = some.plan.bytes <= other.plan.bytes and some.at_best <= other.at_best
    is_better = (some.plan.bytes, some.at_best, some.order) < (other.plan.bytes, other.at_best, other.order)
    return is_no_worse and is_better and some.over_plain <= other.over_plain + _ALIKE


def _kept(version: Version, plan: Plan) -> int:
    """The bytes that are alive between the passes."""
    graph, sequence = version.joint.graph, plan.sequence
    split, alive = split_of(graph, sequence), profile(graph, sequence)
    return int(alive[max(split - 1, 0) : split + 1].min(initial=plan.bytes))
