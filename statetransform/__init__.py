"""JAX's transforms, made aware of mutable state, and gradients that need fewer bytes. See docs/how-it-works.md."""

from typing import Any

from . import inspect, policies, transform
from ._base.errors import (
    BudgetError,
    RetraceWarning,
    StaleReadWarning,
    StateAxisError,
    StateStructureError,
    StateTraceError,
    StateTransformError,
    no_attribute,
)
from ._frameworks import attr, register_state_type
from ._memory import MemoryBudget, Reversible, Target, schedule, target
from ._states.find import states
from ._states.kinds import Param, RandomState
from ._states.saving import load_state_dict, state_dict
from ._states.state import State
from ._states.update import update, values
from ._states.values import Values
from ._version import __version__

__all__ = [
    "BudgetError",
    "MemoryBudget",
    "Param",
    "RandomState",
    "RetraceWarning",
    "Reversible",
    "StaleReadWarning",
    "State",
    "StateAxisError",
    "StateStructureError",
    "StateTraceError",
    "StateTransformError",
    "Target",
    "Values",
    "__version__",
    "attr",
    "inspect",
    "load_state_dict",
    "policies",
    "register_state_type",
    "schedule",
    "state_dict",
    "states",
    "target",
    "transform",
    "update",
    "values",
]


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name)


for _object in [globals()[name] for name in __all__]:  # public objects say where they are imported from
    if callable(_object):
        _object.__module__ = __name__
