"""Each trick of emitted programs names programs that need it, and can be switched off."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from statetransform import policies, transform

# No user switches a trick off: `python -m benchmarks.tricks` does.
from statetransform._memory.plans.tricks import MOVED, TRICKS, Trick, without

from .compilers import KEEPS_BARRIERS
from .test_programs import PROGRAMS, patches_of_images


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_the_programs_that_need_a_trick_are_there(trick: Trick) -> None:
    names = {str(program.id).rsplit("-", 1)[0] for program in PROGRAMS}
    assert trick.needed_by and set(trick.needed_by) <= names


@pytest.mark.skipif(not KEEPS_BARRIERS, reason="the compiler removes barriers")
def test_a_trick_that_is_off_leads_to_another_plan() -> None:
    def work() -> float:
        loss, args = patches_of_images()  # another function each time: what one has planned stays with it
        compiled = lambda f: jax.jit(jax.value_and_grad(f, argnums=1)).lower(*args).compile()
        plain: Any = compiled(loss).memory_analysis()
        budget: Any = policies.fit(plain.temp_size_in_bytes // 2)
        compiled(transform.checkpoint(loss, policy=budget))
        return budget.choices[-1].flops_over_plain

    usual = work()
    with without(MOVED):
        assert work() > usual
    assert work() == usual
