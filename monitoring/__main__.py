"""Write Grafana's dashboards from their sources: ``python -m monitoring [--check]``.

Each ``monitoring/dashboards/NAME.yaml`` becomes NAME.json. ``--check`` writes nothing and fails,
naming the files, if one is not what its source says.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Final

import yaml

from monitoring.panels import SourceError, dashboard

FOLDER: Final = Path(__file__).parent / "dashboards"


def generated(source: Path) -> str:
    """Return the JSON of a dashboard, with a line for each panel."""
    try:
        described = yaml.safe_load(source.read_text(encoding="utf-8"))
        found = dashboard(**described)
    except (SourceError, yaml.YAMLError, TypeError, KeyError) as err:
        sys.exit(f"{source}: {err}")
    return re.sub(r'(?=\{"id": \d)', "\n", json.dumps(found)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    is_check = parser.parse_args().check
    wanted = {each.with_suffix(".json"): generated(each) for each in FOLDER.glob("*.yaml")}
    found = {each: each.read_text(encoding="utf-8") for each in FOLDER.glob("*.json")}
    changed = sorted({path.name for path, _ in wanted.items() ^ found.items()})
    if is_check and changed:
        sys.exit(f"not what the source says: {', '.join(changed)}; run python -m monitoring")
    if is_check:
        return
    for path in found.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
