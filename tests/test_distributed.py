"""Two processes train together over loopback, and their states stay in agreement."""

from __future__ import annotations

import ast
import os
import pathlib
import runpy
import socket
import subprocess
import sys

import numpy as np

WORKER = pathlib.Path(__file__).parent / "workers" / "train_two.py"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def final(out: str) -> list:
    (line,) = [line for line in out.splitlines() if line.startswith("final")]
    return [ast.literal_eval(part) for part in line.split(" | ")[1:]]


def test_two_processes_agree_with_one() -> None:
    env = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(WORKER.parent.parent.parent)}
    command, pipe = [sys.executable, str(WORKER)], subprocess.PIPE
    port = str(free_port())
    workers = [
        subprocess.Popen([*command, port, str(i)], stdout=pipe, stderr=pipe, text=True, env=env) for i in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=180) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    first, second = [final(out) for out, _ in outputs]
    assert first == second
    alone = runpy.run_path(str(WORKER))["by_hand"]()
    for found, expected in zip(first, alone, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # the means are added in another order
