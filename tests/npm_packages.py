"""Installs the npm packages that tests need, at the locked versions, into the cache."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from localcluster.errors import BuildError, CommandError
from localcluster.host import Need, provide
from localcluster.run import run
from localcluster.state import cache_root, locked

FOLDER: Final = Path(__file__).parent / "npm"
_FILES: Final = ("package.json", "package-lock.json")
_NPM: Final = Need("`npm`", "npm", lambda: shutil.which("npm") is not None)


def axe_core(say: Callable[[str], None]) -> Path:
    """Return axe-core's script; HostError if npm is missing and cannot be installed."""
    script = _installed(say) / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        raise BuildError(f"npm installed no {script}")
    return script


def _installed(say: Callable[[str], None]) -> Path:
    content = b"".join((FOLDER / name).read_bytes() for name in _FILES)
    folder = cache_root() / f"npm-{hashlib.sha256(content).hexdigest()[:16]}"
    if folder.exists():
        return folder
    provide((_NPM,))
    with locked(cache_root() / ".npm.lock"):
        if not folder.exists():
            say("installing npm packages for tests ...")
            made = Path(tempfile.mkdtemp(prefix=".npm-", dir=cache_root()))
            for name in _FILES:
                shutil.copy(FOLDER / name, made)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                run([*command, f"--prefix={made}"], env=dict(os.environ), seconds=300)
            except CommandError as problem:
                shutil.rmtree(made)
                raise BuildError(f"npm could not install {FOLDER}: {problem}") from problem
            made.rename(folder)
    return folder
