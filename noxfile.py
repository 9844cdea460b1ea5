"""The version matrix: each interpreter that is there with each JAX that runs on it."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

import nox

nox.options.default_venv_backend = "venv"
MATRIX = {"3.11": ["0.10"], "3.12": ["0.11", "0.12"], "3.13": ["0.11", "0.12"]}


def interpreter(version: str) -> str | None:
    """An interpreter of that version that really runs: a name on the PATH may be a shim that does not."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    known = [shutil.which(f"python{version}"), *glob.glob(f"{root}/versions/{version}*/bin/python")]
    candidates = [*known, shutil.which("python3"), sys.executable]
    for candidate in candidates:
        if candidate is None:
            continue
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


FOUND = {version: path for version in MATRIX if (path := interpreter(version))}


def run_tests(session: nox.Session, jax: str) -> None:
    """Installs the package with one JAX and runs the tests."""
    session.install("-e", ".[test]", jax)
    session.run("python", "-c", "import jax; print('JAX', jax.__version__)")
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", *session.posargs)


def add(version: str, jax: str) -> None:
    @nox.session(name=f"tests-{version}-jax{jax}", python=FOUND[version])
    def tests(session: nox.Session) -> None:
        run_tests(session, f"jax=={jax}.*")


for _version in FOUND:
    for _jax in MATRIX[_version]:
        add(_version, _jax)


@nox.session(python=list(FOUND.values())[-1] if FOUND else sys.executable)
def newest(session: nox.Session) -> None:
    """The newest JAX of the matrix on the newest interpreter that is there."""
    # An interpreter outside the matrix takes the newest JAX that pip finds for it.
    run_tests(session, f"jax=={MATRIX[list(FOUND)[-1]][-1]}.*" if FOUND else "jax")


@nox.session(python=list(FOUND.values())[-1] if FOUND else sys.executable)
def adapters(session: nox.Session) -> None:
    """The adapters with the frameworks that they are for."""
    session.install("-e", ".[test,adapters]")
    session.run("python", "-m", "pytest", "tests/adapters", *session.posargs)
