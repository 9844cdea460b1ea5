"""A memory budget for a loop, and the plan that it buys.

A loop may keep carries, or residuals of whole blocks of steps, or both: with all residuals it is the plain scan, with
carries alone the binomial schedule. Among all numbers of carries and block sizes whose bytes fit, the plan with the
fewest step evaluations is taken.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import os
import weakref
from typing import Any, ClassVar, NoReturn

from ..._base.errors import BudgetError, PolicyWarning
from ..._base.sites import warn
from ..._base.table import Table
from ..programs.sizes import format_bytes, parse_bytes
from ..targets import refuse_offloading, target_of
from . import plan
from .choice import FLYING, MOST, WORKING, Choice, FunctionChoice, Sizes
from .far.files import Folder
from .far.memory import Room

logger = logging.getLogger("statetransform")


@dataclasses.dataclass(frozen=True, repr=False)
class MemoryBudget:
    """The memory that a loop or a function may use for the intermediate results that its gradient needs.

    `scan(..., checkpoint=st.MemoryBudget("2GiB"))` limits what a loop stores.
    `checkpoint(f, policy=st.MemoryBudget("2GiB"))`, also spelled `policies.fit("2GiB")`, limits the intermediates of
    any function that are alive at the same time.

    A loop stores the carries and the residuals of steps that fit, so that the fewest steps are recomputed. With enough
    memory it is the plain scan.

    The budget of a loop counts the stored carries, the recorded residuals, the five carries at work in a sweep
    (current, next and initial carry, and two cotangents), and what the gradient of one step needs besides: a short loop
    of such steps is compiled for the device, once for each step, and its temporary bytes are read. Bytes are those of
    one device where the shardings are known. Carries of a few bytes take up to 4 KiB more. The budget does not count
    the loop's arguments and results, and their cotangents. The budget of a function counts all intermediates and their
    cotangents, but not arguments, outputs and gradients. All batch elements of `vmap` count if they are known when the
    loop is planned. Those of a `vmap` around `jit` or `checkpoint` are not, and a `PolicyWarning` says so.

    With `host=` or `disk=`, a loop puts further carries in the host's memory or in files, those in host memory first.
    The steps between two of them are recomputed with the carries on the device, so a few tens of transfers may save a
    quarter of the step evaluations. A loop is planned with them only if that takes fewer evaluations.

    Files are unlinked as soon as they are made: they are gone after the gradient, an error in their use, or the end of
    the process. If several loops are between their forward and their backward pass, their files in a folder take at
    most `disk` together. Carries that are sharded over devices go to host memory only. As a policy of a function, such
    a budget is for the loops in it, like `policies.loops`: they share it evenly, and what is outside of loops is
    saved.

    Args:
      size: bytes on the device, or a text such as "512 MiB" or "2GB".
      host: bytes in the host's memory; None for no carries there.
      disk: bytes in files; None for no carries there.
      folder: an existing folder for the files, on a local disk. It has no default, as temporary folders may be memory.
      compile: whether to compile the plans for a function, to see what they need.
      progress: whether to show a `tqdm` bar while a function is planned.
      target: the devices that plans are made for, if they are not there: a :class:`statetransform.Target`, its name, or
        devices of a topology. Default: where the arguments are, or what JAX runs on.

    Attributes:
      bytes: the size in bytes, by which budgets are compared.
      host_bytes, disk_bytes: those in the host's memory and in files.
      choices: what was chosen for the loops and functions that were traced with equal budgets; the newest comes last.

    Raises:
      TypeError, ValueError: `size`, `host` or `disk` is not a size, or only one of `disk` and `folder` is given; or
        there is no such `target`.
      ImportError, RuntimeError: the compiler of `target` cannot be had.

    Example:
      >>> import jax, jax.numpy as jnp, statetransform as st
      >>> budget = st.MemoryBudget("1 MiB")
      >>> def loss(x):
      ...     step = lambda x, _: (jnp.sin(x), None)
      ...     y, _ = st.transform.scan(step, x, length=1000, checkpoint=budget)
      ...     return y.sum()
      >>> _ = jax.grad(loss)(jnp.ones(1024))
      >>> print(budget.choices[-1])
      a loop of 1000 steps within 1 MiB: stores 3 carries of 4 KiB and the residuals of 247 steps ...
    """

    size: int | str = dataclasses.field(compare=False)
    bytes: int = dataclasses.field(init=False)
    host: int | str | None = dataclasses.field(default=None, compare=False, kw_only=True)
    disk: int | str | None = dataclasses.field(default=None, compare=False, kw_only=True)
    folder: str | os.PathLike[str] | None = dataclasses.field(default=None, kw_only=True)
    compile: bool = dataclasses.field(default=True, kw_only=True)
    progress: bool = dataclasses.field(default=False, compare=False, kw_only=True)
    target: Any = dataclasses.field(default=None, kw_only=True)
    host_bytes: int = dataclasses.field(init=False)
    disk_bytes: int = dataclasses.field(init=False)
    _choices: ClassVar[Choices]  # of the value; no field, since it takes no part in comparisons

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", parse_bytes(self.size))
        if self.bytes == 0:
            raise ValueError(f"a budget must be positive, but {self.size!r} is 0 bytes")
        object.__setattr__(self, "host_bytes", 0 if self.host is None else parse_bytes(self.host))
        object.__setattr__(self, "disk_bytes", 0 if self.disk is None else parse_bytes(self.disk))
        if self.folder is not None:
            if self.disk is None:
                raise ValueError(f"MemoryBudget: `folder={self.folder!r}` needs a size. Write `disk=` with `folder=`.")
            folder = os.fspath(self.folder) if isinstance(self.folder, os.PathLike) else self.folder
            if not isinstance(folder, str):
                raise TypeError(f"MemoryBudget: `folder` must be a path as text, not {self.folder!r}")
            object.__setattr__(self, "folder", folder)
        elif self.disk is not None:
            raise ValueError(
                f'MemoryBudget: disk={self.disk!r} needs a folder on a disk, `folder="/scratch/me"` for example. There '
                "is no default, since temporary folders may be memory."
            )
        if self.target is not None:
            object.__setattr__(self, "target", target_of(self.target))
        value = tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.compare)
        object.__setattr__(self, "_choices", _chosen.setdefault(value, collections.deque(maxlen=64)))

    def __reduce__(self) -> Any:  # copies have the choices of their value
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}
        return functools.partial(type(self), **given), ()

    @property
    def choices(self) -> tuple[Choice | FunctionChoice, ...]:
        """What was chosen for the loops and functions that were traced with equal budgets, the last 64 at most."""
        return tuple(self._choices.copy())  # in one go, whatever other threads add

    def record(self, choice: Choice | FunctionChoice) -> None:
        """Adds a choice."""
        self._choices.append(choice)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuses to say of a single value whether it is kept, as `jax.checkpoint` asks a policy."""
        raise TypeError(
            f"{self.spelled} is for a whole function, and says of no single value whether it is kept. Give it to "
            "`transform.checkpoint(f, policy=...)` alone: not to `jax.checkpoint`, `any_of`, `all_of` and `none_of`."
        )

    def __str__(self) -> str:
        return format_bytes(self.bytes)

    @property
    def spelled(self) -> str:
        """How it is written."""
        places = {"host": self.host, "disk": self.disk, "folder": self.folder}
        shown = "".join(f", {name}={value!r}" for name, value in places.items() if value is not None)
        shown += "" if self.target is None else f", target={str(self.target)!r}"
        return f"MemoryBudget({self.size!r}{shown})"

    def __repr__(self) -> str:
        chosen = self.choices
        return self.spelled + (f"  # {chosen[-1]}" if chosen else "")

    def _repr_html_(self) -> str:
        return Table(self.spelled, ["chosen"], [[str(choice)] for choice in self.choices]).html()

    def choose(
        self,
        where: str,
        n: int | None,
        sizes: Sizes,
        *,
        lanes: int = 1,
        shared_by: tuple[int, int] = (1, 1),
    ) -> Choice:
        """The plan with the fewest step evaluations that fits; a `BudgetError` where nothing does.

        Args:
          n: number of steps; None if it is not known in advance.
          sizes: the bytes of one lane, of `lanes` that there are.
          shared_by: how many loops share the room on the device, and how many that far away.
        """
        if self.disk_bytes:
            self._folder(where).open().close()  # a folder that cannot be used is said before anything runs
        sizes, budget = Sizes(*[lanes * size for size in sizes]), self.bytes // shared_by[0]
        make = lambda k, block: Choice(n, k, block, sizes, budget, lanes=lanes)
        fitting = [make(k, block) for k, block in sizes.candidates(n, budget)]
        if not fitting:
            raise self._unmet(where, make(0, 1), None if n is None else make(0, n))
        best = fitting[-1] if n is None else min(fitting, key=lambda choice: (choice.evaluations, choice.bytes))
        if self.host_bytes or self.disk_bytes:
            best = self._with_far(where, best, shared_by[1])
        self.record(best)
        logger.info("%s: %s", where, best)
        return best

    def notice(self, where: str, choice: Choice, lanes: int) -> None:
        """Warns that a loop has got more lanes than were known when it was planned: its bytes are those of one."""
        self.record(dataclasses.replace(choice, is_of_one_lane=True))
        least = format_bytes(max(self.bytes // lanes, 1))
        warn(
            f"{where}: the loop was planned within {format_bytes(self.bytes)}, and got {lanes} lanes of `vmap` "
            "later; each of them takes that much. A budget counts the lanes that are known where the loop is "
            f"traced: put `jit` and `checkpoint` around `vmap`, or give a lane its part, {least}.",
            PolicyWarning,
        )

    def _unmet(self, where: str, sweep: Choice, plain: Choice | None) -> BudgetError:
        """What is wrong with a budget that neither a sweep without stored carries nor the plain loop fits."""
        carry, residual = format_bytes(sweep.sizes.carry), format_bytes(sweep.sizes.residual)
        if plain is not None and plain.bytes < sweep.bytes:
            least = plain.bytes
            why = f"the plain loop works on 3 carries of {carry} and keeps {plain.n} steps' residuals of {residual}"
        else:
            least = sweep.bytes
            why = f"a sweep works on {WORKING} carries of {carry}"
        if sweep.lanes > 1:
            why += f", each of them of {sweep.lanes} lanes of `vmap`"
        if sweep.sizes.scratch:
            why += f", and the gradient of one step needs {format_bytes(sweep.sizes.scratch)} besides"
        return BudgetError(
            f"{where}: a budget of {format_bytes(sweep.budget)} cannot be met. The least possible is {least} bytes "
            f"({format_bytes(least)}): {why}. Raise the budget to that, or make the carry smaller.",
            least=least,
        )

    def _with_far(self, where: str, near: Choice, shared_by: int) -> Choice:
        """The plan with carries far away, if that takes fewer evaluations than the one without."""
        target = target_of(self.target)
        if self.host_bytes:
            refuse_offloading(f"{where}: host={self.host!r}", target)
        if self.host_bytes and target.platform == "cpu":
            message = f"{where}: host={self.host!r} saves nothing, as the memory of the CPU is that of the host."
            warn(message + " Write a larger budget instead, or `disk=`.", PolicyWarning)
        carry, n = near.sizes.carry, near.n
        k = near.sizes.most(near.budget - (self.host_bytes > 0) * FLYING * carry)
        host, disk = (size // shared_by // max(carry, 1) for size in (self.host_bytes, self.disk_bytes))
        if k < 0 or not carry:
            return near
        if n is None:
            # Segments double in length when the room is full, for which the number of rows must be even.
            host, disk = (host, disk - (host + disk) % 2) if disk else (host - host % 2, 0)
            if host + disk < 2:
                return near
            return dataclasses.replace(near, carries=min(k, MOST), host=host, disk=disk)
        k = min(k, plan.useful(n))
        used = plan.Periods.of(n, k, host + disk).far
        host = min(host, used)
        found = dataclasses.replace(near, carries=k, block=1, host=host, disk=used - host)
        fewer = (found.evaluations or 0) < (near.evaluations or 0)  # known, as the number of steps is
        return found if used and fewer else near

    def room(self, where: str, choice: Choice) -> Room | None:
        """Where the carries go that a choice puts far away; None if there are none."""
        if not choice.host and not choice.disk:
            return None
        at_once = choice.disk if choice.n is not None else min(choice.disk, _AT_ONCE)
        return Room(choice.host, choice.disk, self._folder(where) if choice.disk else None, at_once)

    def _folder(self, where: str) -> Folder:
        return Folder(str(self.folder), self.disk_bytes, where)


_AT_ONCE = 16  # rows that a loop asks for, if its length is not known
Choices = collections.deque[Choice | FunctionChoice]
#: The last choices for budgets of one value, while one is alive. Traces are found by that value.
_chosen: weakref.WeakValueDictionary[Any, Choices] = weakref.WeakValueDictionary()
