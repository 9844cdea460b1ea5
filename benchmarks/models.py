"""Real models at their real sizes under a budget, ahead of time: arguments are abstract, and nothing runs.

Each model is written in its authors' architecture, with its source beside it. Of the gradient step, as `value_and_grad`
runs it: temporary bytes as compiled, FLOPs, and processor seconds from the call to the compiled step, all over those of
the plain step. By hand: a checkpoint around each block, and the same with `dots` policies.

python -m benchmarks.models --models vit,unet --budgets 0.5,0.25 --json rows.json
python -m benchmarks.models --table rows.json,others.json
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import statetransform as st
from statetransform import _jax, policies, transform
from statetransform._memory.programs.flops import jaxpr_flops
from statetransform._memory.programs.rewrite import inlined
from statetransform._memory.programs.walk import backward_slice

from .budget import Alive
from .model_programs import MODELS
from .timing import temporary_bytes

BUDGETS = (0.7, 0.5, 0.35, 0.25, 0.15)
SAVED = jax.checkpoint_policies
BY_HAND: dict[str, Callable[[Any], Any]] = {
    "block": jax.checkpoint,
    "block, dots": lambda f: jax.checkpoint(f, policy=SAVED.dots_saveable),
    "block, dots without batch": lambda f: jax.checkpoint(f, policy=SAVED.dots_with_no_batch_dims_saveable),
}


def measured(loss: Callable[..., Any], args: Any) -> dict[str, Any]:
    """Bytes, FLOPs and seconds of a gradient step."""
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        traced = jax.jit(jax.value_and_grad(loss)).trace(*args)
        size = temporary_bytes(traced.lower().compile())
    seconds = time.process_time() - start
    flat = _jax.opened(inlined(inlined(traced.jaxpr, rules=True), rules=True))
    flops = jaxpr_flops(Alive(backward_slice(flat, list(flat.outvars))))
    said = any(issubclass(w.category, policies.PolicyWarning) for w in caught)
    return {"bytes": size, "flops": flops, "seconds": seconds, "warned": said}


def rows_of(name: str, shares: tuple[float, ...], with_hand: bool) -> list[dict[str, Any]]:
    """One row for the plain step, each way by hand and each budget."""
    make = MODELS[name]
    loss, args = make(lambda f: f)
    plain = measured(loss, args)
    rows = [{"model": name, "way": "plain", **plain}]
    ways = BY_HAND if with_hand else {}
    rows += [{"model": name, "way": way, **measured(make(around)[0], args)} for way, around in ways.items()]
    for share in shares:
        fitting = transform.checkpoint(loss, policy=policies.fit(int(share * plain["bytes"])))
        try:
            rows.append({"model": name, "way": f"budget {share}", **measured(fitting, args)})
        except st.BudgetError as error:
            rows.append({"model": name, "way": f"budget {share}", "least": error.least})
    return rows


def line(row: dict[str, Any], plain: dict[str, Any]) -> str:
    """A row of the table."""
    if row is plain:
        return f"| {row['model']} | plain: {row['bytes'] / 1e9:.2f} GB, {row['seconds']:.0f} s | 1 | 1 | 1 |"
    if "least" in row:
        return f"| | {row['way']} | refused, least {row['least'] / plain['bytes']:.2f} | | |"
    over = [f"{row[what] / plain[what]:.{digits}f}" for what, digits in (("bytes", 3), ("flops", 3), ("seconds", 1))]
    return f"| | {row['way']} | {over[0]}{' (warned)' if row['warned'] else ''} | {over[1]} | {over[2]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="names, with commas between")
    parser.add_argument("--budgets", help="shares of the plain step's temporary bytes")
    parser.add_argument("--no-hand", action="store_true", help="leave out checkpoints by hand")
    parser.add_argument("--json", help="a file for the rows")
    parser.add_argument("--table", help="files of rows, with commas between: nothing is compiled, a table is printed")
    options = parser.parse_args()
    shares = tuple(map(float, options.budgets.split(","))) if options.budgets else BUDGETS
    rows: list[dict[str, Any]] = []
    if options.table:
        rows = [row for file in options.table.split(",") for row in json.loads(Path(file).read_text())]
    for name in () if options.table else options.models.split(","):
        rows += rows_of(name, shares, not options.no_hand)
        if options.json:
            Path(options.json).write_text(json.dumps(rows, indent=1))
    print("| model | way | bytes | FLOPs | seconds to the first step |\n|:--|:--|--:|--:|--:|")
    plain: dict[str, Any] = {}
    for row in rows:
        plain = row if row["way"] == "plain" else plain
        print(line(row, plain))


if __name__ == "__main__":
    main()
