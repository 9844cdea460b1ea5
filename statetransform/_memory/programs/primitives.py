"""What kind of work each of JAX's primitives does. Other tables name what a kind does not tell, where it is needed.

A primitive that is not in the table is of no kind. It counts as one operation per element of its output, and nothing is
assumed to be fused with it.
"""

from __future__ import annotations

import enum
from typing import Any


class Kind(enum.Enum):
    """What an equation does."""

    PASSES = "hands its operand on, as the same buffer"
    VIEW = "shows its operand in another way, mostly without a copy"
    FILL = "makes an array out of less than an array"
    MOVE = "moves or renames data"
    INDEX = "reads or writes at indices that are data"
    CAST = "elementwise, without arithmetic"
    ELEMENTWISE = "computes each element of its output from the elements at the same place"
    REDUCTION = "one number out of many, into which elementwise work is fused"
    CUMULATIVE = "sums that overlap or collide"
    HEAVY = "a kernel of its own: products, transforms, factorizations, sorting"
    LOOP = "runs a jaxpr many times"
    BRANCH = "runs one jaxpr of several"
    CALL = "runs a jaxpr once"
    RULE = "a function with its own derivative"


_NAMES = {
    Kind.PASSES: "reduce_precision optimization_barrier pvary",
    Kind.VIEW: """
        reshape squeeze transpose copy name stop_gradient sharding_constraint layout_constraint
    """,
    Kind.FILL: "broadcast_in_dim empty empty2 iota",
    Kind.MOVE: """
        rev slice dynamic_slice dynamic_update_slice concatenate pad split device_put bitcast_convert_type
        random_wrap random_unwrap random_seed random_fold_in random_split create_token after_all debug_callback
        get swap call_hi_primitive
    """,
    Kind.INDEX: "gather scatter",
    Kind.CAST: "convert_element_type select_n real imag",
    Kind.ELEMENTWISE: """
        add sub mul div neg sign abs max min pow integer_pow square sqrt rsqrt cbrt exp exp2 expm1 log log1p sin cos
        tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh logistic erf erfc erf_inv gt ge lt le eq ne and or
        xor not floor ceil round rem clamp is_finite add_any one_minus_square conj complex nextafter
    """,
    Kind.REDUCTION: "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin",
    Kind.CUMULATIVE: """
        scatter-add cumsum cumprod cummax cummin cumlogsumexp reduce_window_sum reduce_window_max
        reduce_window
    """,
    Kind.HEAVY: """
        dot_general conv_general_dilated fft sort cholesky lu geqrf qr eigh svd eig triangular_solve
    """,
    Kind.LOOP: "scan while",
    Kind.BRANCH: "cond",
    Kind.CALL: "jit closed_call eval_jaxpr",
    Kind.RULE: "custom_jvp_call custom_vjp_call",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}

#: No arithmetic.
FREE = frozenset((Kind.PASSES, Kind.VIEW, Kind.FILL, Kind.MOVE, Kind.INDEX, Kind.CAST))
#: Holds jaxprs that a rewriter enters.
ENTERED = frozenset((Kind.CALL, Kind.LOOP, Kind.BRANCH))


def kind_of(eqn: Any) -> Kind | None:
    """The kind of an equation, None for a primitive that is not in the table.

    >>> import jax, jax.numpy as jnp
    >>> [kind_of(eqn).name for eqn in jax.make_jaxpr(lambda x: jnp.sin(x).sum())(jnp.ones(3)).jaxpr.eqns]
    ['ELEMENTWISE', 'REDUCTION']
    """
    return _KINDS.get(eqn.primitive.name)


def primitives_of(*kinds: Kind) -> frozenset[str]:
    """The names of the primitives of some kinds.

    >>> sorted(primitives_of(Kind.LOOP))
    ['scan', 'while']
    """
    return frozenset(name for name, kind in _KINDS.items() if kind in kinds)
