#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.2"]
# ///
"""The version matrix: each interpreter that is there with each JAX that runs on it.

nox -s newest                            the checkout on the newest of both
nox -s tests-3.11-jax0.10                the checkout on one pair
nox -s release-3.11-jax0.10 -- tests/    the wheel, installed in an environment of its own, on one pair
nox -s adapters-oldest                   the adapters to other frameworks with the oldest of these; `-newest`
nox -t release                           the wheel on all pairs: before a release
"""

from __future__ import annotations

import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
MATRIX = {"3.11": ["0.10"], "3.12": ["0.11", "0.12"], "3.13": ["0.11", "0.12"], "3.14": ["0.12"]}


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


def run_tests(session: nox.Session, jax: str, extras: str = "test") -> None:
    """Installs the package with one JAX and runs the tests."""
    session.install("-e", f".[{extras}]", jax)
    session.run("python", "-c", "import jax; print('JAX', jax.__version__)")
    session.run("python", "-m", "pytest", "-n", "auto", "--dist", "worksteal", *session.posargs)


def build(session: nox.Session) -> tuple[pathlib.Path, pathlib.Path]:
    """The wheel, which is built from the source distribution, and that one."""
    folder = pathlib.Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", str(folder), ".")
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    session.run("python", "-m", "twine", "check", "--strict", str(wheel), str(source))
    return wheel, source


def unpack(source: pathlib.Path) -> pathlib.Path:
    """The source distribution without the package itself, so that only the installed one can be imported."""
    folder = source.parent / "unpacked"
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    readme = (tree / "PKG-INFO").read_text(encoding="utf-8").partition("\n\n")[2]
    relative = re.findall(r"\]\((?!https?://|#)[^)]*\)", readme)
    if relative:
        raise ValueError(f"links that a package index cannot follow: {relative}")
    shutil.rmtree(tree / "statetransform")
    return tree


def run_release(session: nox.Session, jax: str) -> None:
    """Builds wheel and source distribution, installs the wheel with one JAX, and runs the tests against it."""
    wheel, source = build(session)
    tree = unpack(source)
    session.install(f"statetransform[test] @ {wheel.as_uri()}", jax)
    session.cd(tree)
    code = "import jax, statetransform as s; print('JAX', jax.__version__, s.__file__); assert 'site-' in s.__file__"
    session.run("python", "-c", code)
    chosen = session.posargs or ["tests", "docs", "--pyargs", "statetransform", "-n", "auto"]
    session.run("python", "-m", "pytest", "-p", "no:cacheprovider", *chosen, env={"PYTHONPATH": ""})


def add(version: str, jax: str) -> None:
    @nox.session(name=f"tests-{version}-jax{jax}", python=FOUND[version])
    def tests(session: nox.Session) -> None:
        run_tests(session, f"jax=={jax}.*")

    @nox.session(name=f"release-{version}-jax{jax}", python=FOUND[version], tags=["release"], default=False)
    def release(session: nox.Session) -> None:
        run_release(session, f"jax=={jax}.*")


for _version in FOUND:
    for _jax in MATRIX[_version]:
        add(_version, _jax)


@nox.session(python=list(FOUND.values())[-1] if FOUND else sys.executable)
def newest(session: nox.Session) -> None:
    """The newest JAX of the matrix on the newest interpreter that is there, frameworks, and compilers of cards."""
    # An interpreter outside the matrix takes the newest JAX that pip finds for it.
    # With the compilers of GPUs and TPUs, which need neither: `tests/targets` is skipped without them.
    jax = f"jax=={MATRIX[list(FOUND)[-1]][-1]}.*" if FOUND else "jax"
    run_tests(session, jax, "test,adapters,nvidia,tpu")


# The oldest releases of the frameworks that the oldest JAX runs with, on the oldest interpreter; and the newest of all.
FRAMEWORKS = {"oldest": ["jax==0.10.*", "flax==0.12.2", "brainstate==0.5.4"], "newest": []}


def add_adapters(age: str, python: str) -> None:
    @nox.session(name=f"adapters-{age}", python=python, default=False)
    def adapters(session: nox.Session) -> None:
        """The adapters with the frameworks that they are for."""
        session.install("-e", ".[test,adapters]", *FRAMEWORKS[age])
        pages = ["docs/coming-from.md", "docs/coming-from"]
        chosen = session.posargs or ["tests/adapters", "tests/docs/test_other_frameworks.py", *pages]
        # Old frameworks call what a newer JAX calls deprecated.
        session.run("python", "-m", "pytest", "-W", "ignore::DeprecationWarning", *chosen)


for _age, _place in {"oldest": 0, "newest": -1}.items():
    add_adapters(_age, (list(FOUND.values()) or [sys.executable])[_place])


if __name__ == "__main__":
    nox.main()
