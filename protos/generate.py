"""Generates the Python code beside each .proto file: ``python -m protos.generate [--check]``.

``--check`` writes nothing and fails, naming the files, if what is checked in differs from what the
installed grpcio-tools generates.
"""

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def generate(into: Path) -> list[Path]:
    """Generate all code below ``into``, which stands for the repository root; the files' names."""
    from grpc_tools import protoc  # noqa: PLC0415 - a development tool, absent where we run

    sources = sorted(path.relative_to(ROOT) for path in ROOT.glob("protos/**/*.proto"))
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={into}",
            f"--pyi_out={into}",
            f"--grpc_python_out={into}",
            *map(str, sources),
        ]
    )
    if status:
        raise SystemExit(f"protoc ended with status {status}")
    endings = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
    return [path.with_name(path.stem + ending) for path in sources for ending in endings]


def drifted() -> list[Path]:
    """The generated files that are missing or differ from what would be generated now."""
    with tempfile.TemporaryDirectory() as folder:
        names = generate(Path(folder))
        return [
            name
            for name in names
            if not (ROOT / name).exists()
            or (ROOT / name).read_bytes() != (Path(folder) / name).read_bytes()
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    if not parser.parse_args().check:
        generate(ROOT)
    elif names := drifted():
        shown = ", ".join(map(str, names))
        sys.exit(f"not what grpcio-tools generates: {shown}; run python -m protos.generate")


if __name__ == "__main__":
    main()
