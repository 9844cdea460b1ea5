"""Optional packages that are missing: one sentence for all."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import statetransform as st
from statetransform import inspect, policies, transform


def progress() -> Any:
    options = {"file": io.StringIO()}
    return transform.scan(lambda c, _: (c, None), 0.0, None, 3, progress=options)


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("matplotlib.pyplot", "plot", lambda: st.schedule(9, 2).plot()),
        ("matplotlib.pyplot", "plot", lambda: inspect.timeline(lambda x: jnp.sin(x).sum(), jnp.ones(3)).plot()),
        ("matplotlib.pyplot", "plot", lambda: policies.plan(lambda x: jnp.sin(x).sum(), jnp.ones(3)).plot()),
        ("rich.table", "rich", lambda: inspect.residuals(jnp.sin, jnp.ones(3)).__rich__()),
        ("tqdm.auto", "progress", progress),
    ],
    ids=["schedule", "timeline", "plan", "rich", "progress"],
)
def test_what_is_missing_is_named_with_its_extra(
    module: str, extra: str, use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as info:
        use()
    package = module.partition(".")[0]
    assert f"needs {package}. Install it with `pip install {package}`" in str(info.value)
    assert f"pip install 'statetransform[{extra}]'" in str(info.value)
