"""What reverse mode keeps, what it costs, and why something was traced again.

All functions take a function, with states or without, and its arguments; none of them writes a state. What they return
is data first (`to_dicts()`), and prints as plain text, with `rich` as a table, and as HTML in a notebook.
"""

from typing import Any

from .._base.errors import no_attribute
from ._compare import Candidate, Comparison, compare
from ._cost import Cost, cost
from ._fwd_bwd import FwdBwd, fwd_bwd
from ._largest import largest
from ._origins import Residual
from ._peak import Peak, peak
from ._residuals import Groups, Residuals, print_saved_residuals, residuals
from ._retrace import Change, Retrace, Retraces, explain_retrace
from ._timeline import Moment, Timeline, timeline

__all__ = [
    "Candidate",
    "Change",
    "Comparison",
    "Cost",
    "FwdBwd",
    "Groups",
    "Moment",
    "Peak",
    "Residual",
    "Residuals",
    "Retrace",
    "Retraces",
    "Timeline",
    "compare",
    "cost",
    "explain_retrace",
    "fwd_bwd",
    "largest",
    "peak",
    "print_saved_residuals",
    "residuals",
    "timeline",
]


def __getattr__(name: str) -> Any:
    raise no_attribute(__name__, name)


for _object in [globals()[name] for name in __all__]:  # public objects say where they are imported from
    _object.__module__ = __name__
