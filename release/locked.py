"""Print packages of uv.lock, and what they need, as requirements of pip with hashes.

``python3 release/locked.py uv.lock uv`` is for where there is no uv yet: the image's build and
``make setup``. It needs only Python.
"""

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def requirements(lock: str, names: Iterable[str]) -> list[str]:
    """Return a requirement for each named package and each that it needs, sorted.

    Raises KeyError for a package that the lock (its text) does not have.
    """
    packages: dict[str, Any] = {each["name"]: each for each in tomllib.loads(lock)["package"]}
    found: dict[str, str] = {}
    due = list(names)
    while due:
        name = due.pop()
        if name in found:
            continue
        package = packages[name]
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        hashes = (f"--hash={file['hash']}" for file in files)
        found[name] = " ".join((f"{name}=={package['version']}", *hashes))
        due += [each["name"] for each in package.get("dependencies", ())]
    return sorted(found.values())


if __name__ == "__main__":
    _, path, *wanted = sys.argv
    sys.stdout.write("\n".join(requirements(Path(path).read_text(encoding="utf-8"), wanted)) + "\n")
