"""Tracebacks of errors in a user's function: the user's frames, and those that JAX shows, but none of this package."""

from __future__ import annotations

import os.path
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import statetransform
from statetransform import State, StateTraceError, inspect, policies, transform

PACKAGE = os.path.dirname(statetransform.__file__) + os.sep
s = State(jnp.ones(3), name="s")


def misfit(x: Any) -> Any:
    return (s.value + jnp.ones(4) + x).sum()  # the mistake


def step(carry: Any, _: Any) -> Any:
    return misfit(carry), None


class Model:
    @transform.jit
    def bare(self, x: Any) -> Any:
        return misfit(x)

    @transform.checkpoint(static_argnums=(1,))
    def with_arguments(self, x: Any, n: int) -> Any:
        return misfit(x)


def with_rule(kind: str) -> Callable[..., Any]:
    """A function whose derivative rule makes the mistake."""
    f = getattr(transform, kind)(lambda x: x * s.value.sum())
    if kind == "custom_jvp":
        f.defjvp(lambda primals, tangents: (primals[0] * s.value.sum(), misfit(tangents[0])))
    else:
        f.defvjp(lambda x: (x * s.value.sum(), None), lambda _, ct: (misfit(ct),))
    return f


CALLS: dict[str, Callable[[], Any]] = {
    "jit": lambda: transform.jit(misfit)(1.0),
    "lower": lambda: transform.jit(misfit).lower(1.0),
    "checkpoint": lambda: transform.checkpoint(misfit)(1.0),
    "grad": lambda: transform.grad(misfit)(1.0),
    "vjp": lambda: transform.vjp(misfit, 1.0),
    "jvp": lambda: transform.jvp(misfit, (1.0,), (1.0,)),
    "linearize": lambda: transform.linearize(misfit, 1.0),
    "hessian": lambda: transform.hessian(misfit)(1.0),
    "vmap": lambda: transform.vmap(misfit)(jnp.ones(2)),
    "scan": lambda: transform.scan(step, 1.0, length=3),
    "scan that remembers little": lambda: transform.scan(step, 1.0, length=3, checkpoint=1),
    "for_loop": lambda: transform.for_loop(lambda: misfit(1.0), length=3),
    "fori_loop": lambda: transform.fori_loop(0, 3, lambda i, x: misfit(x), 1.0),
    "while_loop": lambda: transform.while_loop(lambda x: x < 9, misfit, 1.0),
    "map": lambda: transform.map(misfit, jnp.ones(2)),
    "associative_scan": lambda: transform.associative_scan(lambda x, y: misfit(x + y), jnp.ones(4)),
    "cond": lambda: transform.cond(True, misfit, misfit, 1.0),
    "switch": lambda: transform.switch(1, [lambda x: x, misfit], 1.0),
    "custom_jvp": lambda: transform.grad(with_rule("custom_jvp"))(1.0),
    "custom_vjp": lambda: transform.grad(with_rule("custom_vjp"))(1.0),
    "a rule under raw JAX": lambda: jax.grad(with_rule("custom_vjp"))(1.0),
    "eval_shape": lambda: transform.eval_shape(misfit, 1.0),
    "make_jaxpr": lambda: transform.make_jaxpr(misfit)(1.0),
    "checkify": lambda: transform.checkify(misfit)(1.0),
    "named_call": lambda: transform.named_call(misfit)(1.0),
    "lift": lambda: transform.lift(jax.jit)(misfit)(1.0),
    "functionalize": lambda: transform.functionalize(misfit).trace(1.0),
    "jit of a method": lambda: Model().bare(1.0),
    "checkpoint of a method": lambda: Model().with_arguments(1.0, 2),
    "jit of grad of scan": lambda: transform.jit(transform.grad(lambda x: transform.scan(step, x, length=3)[0]))(1.0),
    "raw jit of grad": lambda: jax.jit(transform.grad(misfit))(1.0),
    "grad of raw jit": lambda: transform.grad(jax.jit(misfit))(1.0),
    "residuals": lambda: inspect.residuals(misfit, 1.0),
    "cost": lambda: inspect.cost(misfit, 1.0),
    "compare": lambda: inspect.compare({"plain": misfit}, 1.0),
    "fwd_bwd": lambda: inspect.fwd_bwd(misfit, 1.0),
    "timeline": lambda: inspect.timeline(misfit, 1.0),
    "plan": lambda: policies.plan(misfit, 1.0),
}
MODES = ("off", "tracebackhide", "remove_frames", "quiet_remove_frames")


@pytest.fixture
def filtering() -> Iterator[Callable[[str], None]]:
    before = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    yield lambda mode: jax.config.update("jax_traceback_filtering", mode)
    jax.config.update("jax_traceback_filtering", before)


def error_of(call: Callable[[], Any]) -> Exception:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    return caught.value


def is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(PACKAGE)


@pytest.mark.filterwarnings("ignore::statetransform.StaleReadWarning")  # raw JAX around a read
@pytest.mark.parametrize(
    ("name", "is_inside"),
    [*((name, False) for name in CALLS), *((name, True) for name in ("jit", "grad", "scan", "custom_vjp", "cost"))],
)
def test_no_frame_is_of_this_package_and_the_mistake_is_there(name: str, is_inside: bool) -> None:
    call = transform.jit(CALLS[name]) if is_inside else CALLS[name]
    frames = traceback.extract_tb(error_of(call).__traceback__)
    assert [frame for frame in frames if is_ours(frame)] == []
    assert (frames[0].name, "the mistake" in "".join(frame.line or "" for frame in frames)) == ("error_of", True)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda f: transform.jit(f)(1.0), lambda f: jax.jit(f)(1.0)),
        (lambda f: transform.grad(f)(1.0), lambda f: jax.grad(f)(1.0)),
        (lambda f: transform.vmap(f)(jnp.ones(2)), lambda f: jax.vmap(f)(jnp.ones(2))),
        (lambda f: transform.checkpoint(f)(1.0), lambda f: jax.checkpoint(f)(1.0)),
        (lambda f: transform.map(f, jnp.ones(2)), lambda f: jax.lax.map(f, jnp.ones(2))),
        (lambda f: transform.cond(True, f, f, 1.0), lambda f: jax.lax.cond(True, f, f, 1.0)),
    ],
    ids=["jit", "grad", "vmap", "checkpoint", "map", "cond"],
)
def test_the_frames_are_those_that_jax_shows_for_its_own_transform(ours: Any, theirs: Any) -> None:
    def wrong(x: Any) -> Any:
        raise ValueError("a mistake of the user's")

    both = [traceback.extract_tb(error_of(lambda call=call: call(wrong)).__traceback__) for call in (ours, theirs)]
    assert len(both[0]) == len(both[1]) and both[0][-1] == both[1][-1]
    assert [frame.filename for frame in both[0]] == [__file__] * len(both[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["jit", "scan", "vmap", "jit of grad of scan"])
def test_the_setting_of_jax_says_how_frames_are_hidden(name: str, mode: str, filtering: Callable[[str], None]) -> None:
    filtering(mode)
    error = error_of(CALLS[name])
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if frame.f_code.co_filename.startswith(PACKAGE)]
    assert bool(ours) == (mode in ("off", "tracebackhide"))
    assert all(("__tracebackhide__" in frame.f_locals) == (mode == "tracebackhide") for frame in ours)
    assert (error.__cause__ is not None) == (mode == "remove_frames")  # the one that JAX adds, with all frames


def test_what_the_user_chains_is_kept() -> None:
    original = KeyError("missing")

    def fails(x: Any) -> Any:
        try:
            raise original
        except KeyError as error:
            raise ValueError("no such table") from error

    for call in (lambda: transform.jit(fails)(1.0), lambda: transform.cond(True, fails, fails, 1.0)):
        error = error_of(call)
        assert error.__cause__ is original and original.__traceback__ is not None


def test_an_error_of_this_package_ends_at_the_line_of_the_user() -> None:
    def write(x: Any) -> Any:
        s.value = x
        return x

    with pytest.raises(StateTraceError) as caught:
        transform.grad(jax.jit(write))(1.0)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "s.value = x"


def test_an_error_that_the_function_itself_catches_is_as_it_was() -> None:
    @transform.jit
    def careful(x: Any) -> Any:
        try:
            return transform.scan(step, x, length=2)[0]
        except (TypeError, ValueError):
            return x + 1

    assert careful(1.0) == 2.0
