from ._autodiff import jvp, linearize, vjp
from ._branches import cond, switch
from ._checkpoint import checkpoint, remat
from ._functional import functionalize, lift
from ._jit import Jitted
from ._loops import for_loop, fori_loop, scan, while_loop
