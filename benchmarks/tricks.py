"""What each trick of emitted plans is worth: `python -m benchmarks.tricks [--target H100] [--programs norms pooling]`.

The programs are those of `tests/planner/test_programs.py`, each within its budgets; nothing runs. Each is planned with
all tricks, and once more without each of them. A row with another outcome is printed: the bytes as compiled and the
operations, both over those of the plain step, and how many plans were compiled to find it.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from typing import Any

import jax

import statetransform as st
from statetransform import policies, transform
from statetransform._memory.plans import tricks
from tests.planner.test_programs import PROGRAMS

from .timing import show, temporary_bytes


class Compilations(logging.Handler):
    """Counts the plans that are compiled."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Counts one, if it is one."""
        self.count += record.getMessage().endswith("compiling a plan")


def outcome(make: Any, share: float, by: Any, target: st.Target | None) -> dict[str, str]:
    """What a budget leads to."""
    f, args = make()
    if target is not None:
        args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=target.sharding), args)
    compiled = lambda f: temporary_bytes(jax.jit(jax.value_and_grad(f, argnums=by)).lower(*args).compile())
    plain, counted, logger = compiled(f), Compilations(), logging.getLogger("statetransform")
    budget: Any = policies.fit(int(share * plain), target=target)
    level = logger.level
    logger.addHandler(counted)
    logger.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", policies.PolicyWarning)  # the row shows what exceeds its budget
            size = compiled(transform.checkpoint(f, policy=budget))
    except st.BudgetError as error:
        return {"bytes": f"refused below {(error.least or 0) / plain:.3f}", "FLOPs": "", "plans": str(counted.count)}
    finally:
        logger.removeHandler(counted)
        logger.setLevel(level)
    cost = budget.choices[-1].flops_over_plain
    return {"bytes": f"{size / plain:.3f}", "FLOPs": f"{cost:.3f}", "plans": str(counted.count)}


def main() -> None:
    """Prints a table for each program in which some trick matters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="a card, such as H100, in place of the devices that are there")
    parser.add_argument("--programs", nargs="*", default=[""], help="parts of their names")
    options = parser.parse_args()
    target = None if options.target is None else st.target(options.target)
    for program in PROGRAMS:
        if not any(name in str(program.id) for name in options.programs):
            continue
        make, share, by, *_ = program.values
        rows = {"all": outcome(make, share, by, target)}
        for trick in tricks.TRICKS:
            with tricks.without(trick):
                rows[f"without {trick.name}"] = outcome(make, share, by, target)
        show(str(program.id), {name: row for name, row in rows.items() if name == "all" or row != rows["all"]})


if __name__ == "__main__":
    main()
