"""The one place that looks below JAX's documented surface, each use with its reason.

`jax.extend.core` exports the trace context (`get_opaque_trace_state`, `take_current_trace`,
`set_current_trace`) from JAX 0.10 on; the rest of the package takes them from here. Nothing here looks at a
version number: what is asked is what the object at hand can do, so that a release between two tested ones works too.
"""

from .arrays import barrier as barrier
from .arrays import buffer_of as buffer_of
from .arrays import concrete_array as concrete_array
from .arrays import host_room as host_room
from .arrays import is_array_type as is_array_type
from .arrays import is_zero_tangent as is_zero_tangent
from .arrays import on_devices as on_devices
from .arrays import set_buffer as set_buffer
from .arrays import symbolic_zero as symbolic_zero
from .arrays import type_text as type_text
from .arrays import typeof as typeof
from .arrays import varying_axes as varying_axes
from .arrays import weak as weak
from .arrays import zeros as zeros
from .binding import bind as bind
from .binding import bind_in as bind_in
from .binding import bind_name as bind_name
from .binding import bind_remat as bind_remat
from .binding import bind_with_rules as bind_with_rules
from .binding import define as define
from .binding import define_batching as define_batching
from .binding import in_place_of as in_place_of
from .binding import placed as placed
from .binding import run as run
from .binding import splice as splice
from .contexts import TOP_LEVEL as TOP_LEVEL
from .contexts import ContextDict as ContextDict
from .contexts import forget_failed_calls as forget_failed_calls
from .contexts import is_in_callback as is_in_callback
from .contexts import is_jit_disabled as is_jit_disabled
from .contexts import is_top_level as is_top_level
from .contexts import run_of_caches as run_of_caches
from .contexts import set_current_trace as set_current_trace
from .contexts import take_current_trace as take_current_trace
from .contexts import trace_state as trace_state
from .jaxprs import NamedVariable as NamedVariable
from .jaxprs import UserFrame as UserFrame
from .jaxprs import argument_names as argument_names
from .jaxprs import close_over_inputs as close_over_inputs
from .jaxprs import consts_of as consts_of
from .jaxprs import effects_that_stay as effects_that_stay
from .jaxprs import eval_jaxpr as eval_jaxpr
from .jaxprs import function_of as function_of
from .jaxprs import has_rule as has_rule
from .jaxprs import is_jaxpr as is_jaxpr
from .jaxprs import is_remat as is_remat
from .jaxprs import name_in_params as name_in_params
from .jaxprs import name_of as name_of
from .jaxprs import name_scopes as name_scopes
from .jaxprs import names_held as names_held
from .jaxprs import opened as opened
from .jaxprs import part_of as part_of
from .jaxprs import remat_params as remat_params
from .jaxprs import user_frames as user_frames
from .jaxprs import with_equations as with_equations
from .jaxprs import without_constvars as without_constvars
from .tracers import Tracer as Tracer
from .tracers import belongs_to as belongs_to
from .tracers import has_tracer as has_tracer
from .tracers import is_batched as is_batched
from .tracers import is_tracer_of as is_tracer_of
from .tracers import lanes_of as lanes_of
from .tracers import lowered as lowered
from .tracers import runs_rule_directly as runs_rule_directly
from .tracers import stages as stages
from .tracers import staging_trace as staging_trace
from .tracers import vmaps_around as vmaps_around
