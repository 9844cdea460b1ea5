"""The private names of frameworks that the adapters rely on: one clear failure when a version has changed them."""

from __future__ import annotations

import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform._frameworks.descriptor import CellDescriptor
from statetransform._jax import buffer_of, set_buffer
from statetransform._states.cell import cell_behind


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_refs_have_the_methods_and_functions_that_are_replaced() -> None:
    for name in ("__getitem__", "__setitem__", "addupdate", "at"):
        assert name in vars(jax.Ref)
    for name in ("get", "set", "swap", "addupdate", "freeze"):
        assert callable(getattr(jax.ref, name))
    assert type(jax.new_ref(jnp.zeros(2))) is jax.Ref
    assert jax.Ref.__weakrefoffset__


def test_a_ref_holds_an_array_that_can_be_replaced() -> None:
    """And reading it by JAX takes forty times as long as a compiled copy; once it does not, use `ref[...]`."""
    ref, other = jax.new_ref(jnp.zeros(2)), jnp.ones(2)
    assert isinstance(buffer_of(ref), jax.Array)
    set_buffer(ref, other)
    assert ref[...].tolist() == [1, 1]


def test_reading_a_ref_copies() -> None:
    ref = jax.new_ref(jnp.zeros(2))
    before = ref[...]
    ref[...] = jnp.ones(2)
    assert before.tolist() == [0, 0]


def test_brainstate_keeps_values_where_the_adapter_looks() -> None:
    bs = pytest.importorskip("brainstate")
    st.states([bs.State(0.0)])
    assert isinstance(vars(bs.State)["_value"], CellDescriptor)
    state = bs.State(1.0)
    assert vars(state)["_value"] == 1.0
    context = bs._state.TRACE_CONTEXT
    assert context.state_stack == []
    with bs._state.StateTraceStack() as stack:
        assert context.state_stack == [stack]
        state.value = 2.0
    assert [s is state for s in stack.states] == [True]
    assert next(iter(inspect.signature(bs.State._check_tracer_write_outside_trace).parameters)) == "self"
    assert {"_been_writen", "_hooks_manager", "_source_info", "_trace_state", "_level"} <= set(vars(state))


UNKNOWN = {
    "flax.nnx": (
        "from flax import nnx; del nnx.Pytree._setattr",
        "nnx.Variable(1.0)",
    ),
    "brainstate": (
        "import brainstate; del brainstate.State._check_tracer_write_outside_trace",
        "brainstate.State(1.0)",
    ),
    "jax": ("import jax; del jax.ref.freeze", "jax.new_ref(1.0)"),
}


@pytest.mark.parametrize("framework", UNKNOWN)
def test_an_unknown_version_is_refused_where_a_cell_is_met_and_nowhere_else(framework: str) -> None:
    pytest.importorskip(framework)
    change, make = UNKNOWN[framework]
    code = (
        f"{change}\n"
        "import statetransform as st\n"
        "s = st.State(1.0)\n"
        "add = st.transform.jit(lambda x: setattr(s, 'value', s.value + x))\n"
        "add(1.0); st.transform.grad(lambda x: x * s.value)(1.0); print(s.value)\n"
        f"cell = {make}\n"
        "def look(x): return cell[...] * x if hasattr(cell, '__getitem__') else cell.value * x\n"
        "for T in (st.transform.jit, st.transform.grad, st.transform.jit):\n"
        "    try: T(look)(1.0)\n"
        "    except st.StateTransformError as error: print(error)\n"
    )
    first, *rest = run(code).splitlines()
    assert first == "2.0"
    refused = 2 if framework == "jax" else 3  # where JAX runs the function, it reads a `Ref` by itself
    assert len(rest) == refused and all("this version of statetransform" in line for line in rest)


IS_CHANGED = """
def changed():
    return [
        nnx is not None and vars(nnx.Variable)["_raw_value"] is not slot,
        bst is not None and "_value" in vars(bst.State),
    ]
"""


def test_an_adapter_is_installed_when_one_of_its_cells_is_met_and_not_before() -> None:
    pytest.importorskip("flax.nnx")
    pytest.importorskip("brainstate")
    code = (
        "import jax, brainstate as bst, statetransform as st\n"
        "from flax import nnx\n"
        "slot = vars(nnx.Variable)['_raw_value']\n"
        f"{IS_CHANGED}"
        "s, T = st.State(1.0), st.transform\n"
        "for run in (T.jit, T.grad, T.checkpoint): run(lambda x: x * s.value)(1.0)\n"
        "st.states({'s': s}); print(changed())\n"
        "holder = {'r': jax.new_ref(1.0)}\n"
        "def f(x): holder['r'][...] = holder['r'][...] * x; return holder['r'][...]\n"
        "T.grad(f)(2.0); print(changed(), float(holder['r'][...]))\n"
        "st.states(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), nnx.Param); print(changed())\n"
        "n = bst.State(1.0)\n"
        "def g(x): n.value = n.value * x; return n.value\n"
        "T.jit(g)(2.0); print(changed(), float(n.value))\n"
    )
    assert run(code).splitlines() == [
        "[False, False]",
        "[False, False] 2.0",
        "[True, False]",
        "[True, True] 2.0",
    ]


MAKES = {
    "jax": ("import jax", "jax.new_ref(1.0)", "cell[...]"),
    "flax.nnx": ("import jax; from flax import nnx", "nnx.Variable(jax.numpy.ones(()))", "cell[...]"),
    "brainstate": ("import brainstate", "brainstate.State(1.0)", "cell.value"),
}


@pytest.mark.parametrize(
    ("framework", "wrap", "is_early"), [("jax", "grad", True), ("flax.nnx", "jit", False), ("brainstate", "grad", True)]
)
def test_the_first_cell_of_a_process_may_come_with_any_call(framework: str, wrap: str, is_early: bool) -> None:
    """The cell is made after calls of the same function that met none, and the framework imported before or then."""
    pytest.importorskip(framework)
    load, make, value = MAKES[framework]
    code = (
        f"{load if is_early else ''}\n"
        "import statetransform as st\n"
        "class Holder: cell = None\n"
        "holder = Holder()\n"
        "def f(x):\n"
        "    if (cell := holder.cell) is None: return x\n"
        f"    {value} = {value} * x\n"
        f"    return {value}\n"
        f"wrapped = st.transform.{wrap}(f)\n"
        "wrapped(2.0); wrapped(2.0)\n"
        f"{load}\n"
        f"cell = holder.cell = {make}\n"
        f"wrapped(2.0); wrapped(2.0); print(float({value}))\n"
    )
    assert run(code) == "4.0"


WAYS = ["def outer(make=functools.partial(MAKE)):", "def outer(make=lambda x: MAKE(x)):"]


@pytest.mark.parametrize(("way", "make"), [*zip(WAYS, ("brainstate.State", "nnx.Variable"), strict=True)])
def test_a_class_of_cells_that_a_function_closes_over_is_met(way: str, make: str) -> None:
    framework, *_ = make.split(".")
    pytest.importorskip({"nnx": "flax.nnx"}.get(framework, framework))
    code = (
        "import functools, statetransform as st\n"
        f"{'from flax import nnx' if framework == 'nnx' else 'import brainstate'}\n"
        f"{way.replace('MAKE', make)}\n"
        "    def f(x):\n"
        "        kept.append(make(x)); return x\n"
        "    kept = []\n"
        "    for wrap in (st.transform.jit, st.transform.checkpoint): wrap(f)(2.0)\n"
        "    return kept\n"
        "print([float(cell.get_value() if hasattr(cell, 'get_value') else cell.value) for cell in outer()])\n"
    )
    assert run(code) == "[2.0, 2.0]"


def test_nnx_keeps_values_where_the_adapter_looks() -> None:
    nnx = pytest.importorskip("flax.nnx")
    tracers = pytest.importorskip("flax.nnx.tracers")
    st.states([nnx.Param(jnp.zeros(2))])
    assert cell_behind(vars(nnx.Variable)["_raw_value"]) is not None
    assert nnx.Variable.__slots__ == ("_raw_value", "_trace_state", "_var_metadata")
    assert not nnx.Variable.__weakrefoffset__  # else the values could stay where they are
    assert tracers.TraceState.__slots__ == ["_jax_trace"]
    assert callable(nnx.Pytree._setattr)
    assert nnx.variablelib.is_array_ref(jax.new_ref(jnp.zeros(2)))
    assert not jax.tree_util.all_leaves([nnx.State({})])
    assert tracers.TraceState().is_valid()


def test_nnx_keeps_values_of_high_types_where_the_adapter_looks() -> None:
    library = pytest.importorskip("flax.nnx").variablelib
    home = pytest.importorskip("flax.nnx.variablelib").HijaxVariable
    assert home.__slots__ == ("_treedef", "_leaves", "_var_type", "_ref")
    assert not home.__weakrefoffset__
    variable = library.Variable({"a": jnp.zeros(2), "b": jnp.ones(3)}, hijax=True)
    assert type(variable) is home and [leaf.shape for leaf in variable._leaves] == [(2,), (3,)]
    assert variable._treedef == jax.tree.structure(library._get_hijax_state(variable))
    assert len(variable._treedef.children()) == 1
    assert callable(library._set_hijax_state) and callable(library._new_hijax_from_variable)
