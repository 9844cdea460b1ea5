"""The one place that looks below JAX's documented surface, each use with its reason.

It is divided by who needs it: `traces` the state half, `programs` (parts of jaxprs and types) and `equations` (binding
them with their rules) the memory half and reports, `both` and `tangents` either half.

`jax.extend.core` exports the trace context (`get_opaque_trace_state`, `take_current_trace`,
`set_current_trace`) from JAX 0.10 on; the rest of the package takes them from here. Nothing here looks at a
version number: what is asked is what the object at hand can do, so that a release between two tested ones works too.
"""

from .both import Tracer as Tracer
from .both import below_tangents as below_tangents
from .both import consts_of as consts_of
from .both import eval_jaxpr as eval_jaxpr
from .both import is_batched as is_batched
from .both import is_differentiable as is_differentiable
from .both import is_jaxpr as is_jaxpr
from .both import is_there as is_there
from .both import is_tracer_of as is_tracer_of
from .both import opened as opened
from .both import set_current_trace as set_current_trace
from .both import sharding_of as sharding_of
from .both import slice_type as slice_type
from .both import take_current_trace as take_current_trace
from .both import typeof as typeof
from .both import varying_axes as varying_axes
from .both import weak as weak
from .both import zero_tangent as zero_tangent
from .both import zeros as zeros
from .both import zeros_like as zeros_like
from .equations import barrier as barrier
from .equations import bind as bind
from .equations import bind_name as bind_name
from .equations import bind_remat as bind_remat
from .equations import bind_with_rules as bind_with_rules
from .equations import define as define
from .equations import in_place_of as in_place_of
from .equations import relocated as relocated
from .equations import run as run
from .programs import NamedVariable as NamedVariable
from .programs import UserFrame as UserFrame
from .programs import effects_that_stay as effects_that_stay
from .programs import function_of as function_of
from .programs import given_name as given_name
from .programs import host_room as host_room
from .programs import is_array_type as is_array_type
from .programs import is_in_loop as is_in_loop
from .programs import is_remat as is_remat
from .programs import key_of_policy as key_of_policy
from .programs import lanes_of as lanes_of
from .programs import name_in_params as name_in_params
from .programs import name_scopes as name_scopes
from .programs import names_held as names_held
from .programs import part_of as part_of
from .programs import remat_params as remat_params
from .programs import user_frames as user_frames
from .programs import vmaps_around as vmaps_around
from .programs import with_equations as with_equations
from .programs import without_cache as without_cache
from .programs import without_constvars as without_constvars
from .programs import without_unused as without_unused
from .tangents import is_without_tangent as is_without_tangent
from .tangents import is_zero_tangent as is_zero_tangent
from .tangents import symbolic_zero as symbolic_zero
from .tangents import without_inner_tangents as without_inner_tangents
from .tangents import without_tangent as without_tangent
from .traces import TOP_LEVEL as TOP_LEVEL
from .traces import ContextDict as ContextDict
from .traces import argument_names as argument_names
from .traces import behind as behind
from .traces import belongs_to as belongs_to
from .traces import bind_in as bind_in
from .traces import buffer_of as buffer_of
from .traces import close_over_inputs as close_over_inputs
from .traces import concrete_array as concrete_array
from .traces import define_batching as define_batching
from .traces import emptied as emptied
from .traces import forget_failed_calls as forget_failed_calls
from .traces import has_inner_consts as has_inner_consts
from .traces import has_rule as has_rule
from .traces import has_tracer as has_tracer
from .traces import is_in_callback as is_in_callback
from .traces import is_jit_disabled as is_jit_disabled
from .traces import is_top_level as is_top_level
from .traces import named_as as named_as
from .traces import on_devices as on_devices
from .traces import run_of_caches as run_of_caches
from .traces import runs_rule_directly as runs_rule_directly
from .traces import set_buffer as set_buffer
from .traces import splice as splice
from .traces import stages as stages
from .traces import staging_trace as staging_trace
from .traces import trace_state as trace_state
from .traces import type_text as type_text
