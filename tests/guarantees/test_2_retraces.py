"""What is said of functions that are traced at every call, and where nothing is to be said."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from statetransform import RetraceWarning, State, transform


def new(value: Any) -> State:
    return State(jnp.float32(value))


def test_an_attribute_that_counts_and_changes_says_so() -> None:
    class Clock:
        def __init__(self) -> None:
            self.u, self.t = new(0), 0

        @transform.jit
        def tick(self) -> Any:
            self.t += 1
            return self.u.value

    clock = Clock()
    with pytest.warns(RetraceWarning, match=r"self\.t.*it was 2 and is now 3"):
        for _ in range(4):
            clock.tick()


BODIES = {
    "for_loop": lambda f: transform.for_loop(f, length=2),
    "scan": lambda f: transform.scan(lambda c, _: (c, f()), None, length=2, checkpoint=1),
    "fori_loop": lambda f: transform.fori_loop(0, 2, lambda _, c: (f(), c)[1], None),
    "while_loop": lambda f: transform.while_loop(lambda c: c < 2, lambda c: (f(), c + 1)[1], 0),
    "map": lambda f: transform.map(lambda x: (f(), x)[1], jnp.arange(2)),
    "cond": lambda f: transform.cond(True, f, lambda: None),
}


@pytest.mark.parametrize("where", BODIES)
def test_a_loop_or_branch_that_changes_an_attribute_it_reads_says_so(where: str) -> None:
    class Wave:
        def __init__(self) -> None:
            self.a, self.b, self.t = new(0), new(1), 1

        def swap(self) -> None:
            self.a.value = self.b.value * 2
            self.a, self.b = self.b, self.a

        def tick(self) -> None:
            self.a.value = self.a.value * self.t
            self.t += 1

        def note(self) -> None:
            self.a.value = self.a.value + 1
            self.last = "note"

    said = rf"^{where}: .* runs once, while it is traced, but changes"
    with pytest.warns(RetraceWarning, match=said + r" `.*\.[ab]`, which it reads: it is now another State\. Change"):
        BODIES[where](Wave().swap)
    with pytest.warns(RetraceWarning, match=said + r" `.*\.t`, which it reads: it was 1 and is now 2\. Make it a"):
        BODIES[where](Wave().tick)
    BODIES[where](Wave().note)  # which reads nothing that it changes


@pytest.mark.filterwarnings("error::statetransform.RetraceWarning")
@pytest.mark.parametrize("around", [transform.jit, transform.checkpoint])
def test_a_setting_that_changes_between_many_calls_is_no_retrace_at_every_call(around: Any) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.u, self.stage = State(jnp.zeros(2)), 0

        @around
        def step(self, x: Any) -> None:
            self.u.value = self.u.value + x * self.stage

    trainer = Trainer()
    for trainer.stage in range(5):
        for _ in range(3):
            trainer.step(1.0)
    assert jnp.allclose(trainer.u.value, 3 * sum(range(5)))


def test_a_state_that_is_a_key_is_not_compared_with_other_keys(recwarn: pytest.WarningsRecorder) -> None:
    for box in ({"a": 1.0}, {State(1.0): 2.0}, {"a": 3.0}):
        transform.scan(lambda c, _, box=box: (c + next(iter(box.values())), None), 0.0, None, 2)
    assert not [warning for warning in recwarn if "compared" in str(warning.message)]
