"""The commands ``gpushare`` and ``kubectl-gpushare``."""

import sys
from pathlib import Path

from gpusharectl.app import cli
from gpusharectl.completion import VARIABLE


def main() -> None:
    # kubectl runs kubectl-gpushare for `kubectl gpushare`.
    is_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    cli(prog_name="kubectl gpushare" if is_plugin else "gpushare", complete_var=VARIABLE)


if __name__ == "__main__":
    main()
