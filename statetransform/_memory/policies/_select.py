"""Policies that look at a value's size, or at where it was computed, and policies made from policies.

A value can be recomputed, offloaded or saved; this is also the order of how close it stays. ``any_of`` takes the
closest of what its policies say, ``all_of`` the farthest; of two that offload to different places, the first one given
wins. ``none_of`` saves what none of its policies keeps, on the device or off it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import types
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from jax.ad_checkpoint import Offloadable, Recompute, Saveable

from ..._base.errors import notebook_cell
from ..._base.functions import code_of
from ..programs.sizes import format_bytes, nbytes, parse_bytes
from ..programs.sources import Source
from ._policy import UNKNOWN, Policy, Verdict, ask, describe, is_kept
from ._refuse import check_policy


def output_bytes(primitive: Any, avals: tuple[Any, ...], params: dict[str, Any]) -> int:
    """The bytes of the largest output of an equation, which decides, as one verdict holds for all of them."""
    try:
        out = primitive.abstract_eval(*avals, **params)[0]
    except NotImplementedError:  # a call with a rule of its own
        out = params["call_jaxpr"].out_avals
    return max(map(nbytes, jax.tree.leaves(out)), default=0)


@dataclasses.dataclass(frozen=True, repr=False)
class _BySize(Policy):
    limit: int
    larger: bool

    def decide(self, primitive: Any, avals: Any, params: Any, source: Any) -> Verdict:
        size = output_bytes(primitive, avals, params)
        return size > self.limit if self.larger else size < self.limit

    def __repr__(self) -> str:
        return f"save_{'larger' if self.larger else 'smaller'}_than({format_bytes(self.limit)!r})"


def save_larger_than(size: int | str) -> Policy:
    """Saves the values of more than this many bytes each, a number or text such as ``"1 MiB"``.

    Large values are few, and cost the most memory to keep: mostly useful inside ``all_of`` and ``none_of``.

    >>> save_larger_than("64 KiB")
    save_larger_than('64 KiB')
    """
    return _BySize(parse_bytes(size), larger=True)


def save_smaller_than(size: int | str) -> Policy:
    """Saves the values of fewer than this many bytes each: what is cheap to keep, such as statistics of a norm.

    >>> save_smaller_than(4096)
    save_smaller_than('4 KiB')
    """
    return _BySize(parse_bytes(size), larger=False)


@dataclasses.dataclass(frozen=True, repr=False)
class _FromSource(Policy):
    file: str
    first: int
    last: int | None
    shown: str

    asks_source: ClassVar[bool] = True

    def decide(self, primitive: Any, avals: Any, params: Any, source: Source | None) -> Verdict:
        if source is UNKNOWN:
            raise TypeError(
                f"{self!r} cannot be honoured here: jax.checkpoint does not tell a policy where a value was computed. "
                "Use it with statetransform.transform.checkpoint."
            )
        if source is None:
            return False
        file = source.file.replace(os.sep, "/")
        same_file = file == self.file or file.endswith("/" + self.file) or notebook_cell(source.file) == self.file
        return same_file and self.first <= source.line and (self.last is None or source.line <= self.last)

    def __repr__(self) -> str:
        return f"save_from({self.shown})"


def save_from(where: Callable[..., Any] | str | os.PathLike[str]) -> Policy:
    """Saves the values computed at one place of your code.

    A value belongs to the innermost line of the call stack that is neither JAX's nor this package's. JAX does not
    tell a policy where a value comes from, so this one works with ``statetransform.transform.checkpoint``, which
    names the chosen values first, and is an error elsewhere. Values that first appear in a derivative are not chosen.

    Args:
      where: A function: the lines of its body, with the functions defined inside it. Or the end of a file's
          path, optionally followed by ``:line`` or ``:first-last``.

    Returns:
      The policy.

    >>> save_from("model.py:12"), save_from("layers/attention.py")
    (save_from('model.py:12'), save_from('layers/attention.py'))
    """
    if isinstance(where, (str, os.PathLike)):
        text = os.fspath(where)
        match = re.fullmatch(r"(?P<file>.+?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?", text)
        if match is None or (":" in os.path.basename(match["file"])):
            raise ValueError(f"save_from cannot read {text!r}; write 'file.py', 'file.py:12' or 'file.py:12-20'")
        first, last = match["first"], match["last"]
        start = int(first) if first else 0
        end = int(last) if last else (int(first) if first else None)
        return _FromSource(match["file"].replace(os.sep, "/").removeprefix("./"), start, end, repr(text))
    code = code_of(where)
    if code is None and callable(where) and not isinstance(where, type):
        code = code_of(type(where).__call__)
    if not isinstance(code, types.CodeType):
        raise TypeError(
            f"save_from takes a function written in Python, or a file as text, not {where!r} "
            f"of type {type(where).__name__}"
        )
    return _FromSource(
        code.co_filename.replace(os.sep, "/"),
        code.co_firstlineno,
        _last_line(code),
        getattr(where, "__qualname__", repr(where)),
    )


def _last_line(code: types.CodeType) -> int:
    own = [line for _, _, line in code.co_lines() if line is not None]
    inner = [_last_line(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return max([code.co_firstlineno, *own, *inner])


def _closeness(verdict: Verdict) -> int:
    return 2 if verdict is Saveable else int(isinstance(verdict, Offloadable))


_RULES: dict[str, Callable[[list[Verdict]], Verdict]] = {
    "any_of": lambda verdicts: max(verdicts, key=_closeness, default=Recompute),
    "all_of": lambda verdicts: min(verdicts, key=_closeness, default=Saveable),
    "none_of": lambda verdicts: Recompute if any(map(is_kept, verdicts)) else Saveable,
}


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
