"""Policies made from policies.

A value can be recomputed, offloaded or saved; this is also the order of how close it stays. ``any_of`` takes the
closest of what its policies say, ``all_of`` the farthest; of two that offload to different places, the first one given
wins. ``none_of`` saves what none of its policies keeps, on the device or off it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax.ad_checkpoint import Offloadable, Recompute, Saveable

from ._policy import Policy, Verdict, ask, describe, is_kept
from ._refuse import check_policy


def _closeness(verdict: Verdict) -> int:
    if verdict is Saveable:
        return 2
    return 1 if isinstance(verdict, Offloadable) else 0


def _any(verdicts: list[Verdict]) -> Verdict:
    return max(verdicts, key=_closeness, default=Recompute)


def _all(verdicts: list[Verdict]) -> Verdict:
    return min(verdicts, key=_closeness, default=Saveable)


def _none(verdicts: list[Verdict]) -> Verdict:
    return Recompute if any(map(is_kept, verdicts)) else Saveable


_RULES: dict[str, Callable[[list[Verdict]], Verdict]] = {"any_of": _any, "all_of": _all, "none_of": _none}


@dataclasses.dataclass(frozen=True, repr=False)
class _Combined(Policy):
    rule: str
    parts: tuple[Callable[..., Any], ...]

    def decide(self, primitive: Any, avals: Any, params: Any, source: Any) -> Verdict:
        return _RULES[self.rule]([ask(part, primitive, avals, params, source) for part in self.parts])

    def __repr__(self) -> str:
        return f"{self.rule}({', '.join(map(describe, self.parts))})"


def _combined(rule: str, policies: tuple[Callable[..., Any] | None, ...]) -> Policy:
    for policy in policies:
        check_policy(policy)
        if policy is None:
            raise TypeError(f"{rule} takes policies, and None is not one; write policies.nothing_saveable")
    return _Combined(rule, tuple(p for p in policies if p is not None))


def any_of(*policies: Callable[..., Any]) -> Policy:
    """Keeps what at least one of the policies keeps; saved on the device wins over offloaded.

    >>> from statetransform import policies
    >>> any_of(policies.dots_saveable, policies.save_only_these_names("a"))
    any_of(dots_saveable, save_only_these_names('a'))
    """
    return _combined("any_of", policies)


def all_of(*policies: Callable[..., Any]) -> Policy:
    """Keeps what every one of the policies keeps; offloaded wins over saved on the device.

    >>> from statetransform import policies
    >>> all_of(policies.dots_saveable, policies.save_larger_than("1 MiB"))
    all_of(dots_saveable, save_larger_than('1 MiB'))
    """
    return _combined("all_of", policies)


def none_of(*policies: Callable[..., Any]) -> Policy:
    """Saves what none of the policies keeps.

    >>> from statetransform import policies
    >>> none_of(policies.dots_saveable)
    none_of(dots_saveable)
    """
    return _combined("none_of", policies)
