"""What a checkpoint keeps. `_policy` says what a policy is, and `_apply` is where JAX's checkpoint asks one."""

from ._fit import fit
from ._loops import loops
from ._of_jax import (
    offload_dot_with_no_batch_dims,
    save_and_offload_only_these_names,
    save_any_names_but_these,
    save_anything_except_these_names,
    save_from_both_policies,
    save_only_these_names,
)
from ._policy import Policy, checkpoint_name
from ._refuse import check_policy
from ._select import all_of, any_of, none_of, save_from, save_larger_than, save_smaller_than

__all__ = [
    "Policy",
    "all_of",
    "any_of",
    "check_policy",
    "checkpoint_name",
    "fit",
    "loops",
    "none_of",
    "offload_dot_with_no_batch_dims",
    "save_and_offload_only_these_names",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from",
    "save_from_both_policies",
    "save_larger_than",
    "save_only_these_names",
    "save_smaller_than",
]
