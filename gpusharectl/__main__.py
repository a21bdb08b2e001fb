"""The commands ``gpushare`` and ``kubectl-gpushare``."""

import sys
from pathlib import Path

from gpusharectl.app import cli
from gpusharectl.completion import VARIABLE
from gpusharectl.terminal import streams


def main() -> None:
    # kubectl runs kubectl-gpushare for `kubectl gpushare`.
    is_plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    name = "kubectl gpushare" if is_plugin else "gpushare"
    streams.run(lambda: cli(prog_name=name, complete_var=VARIABLE))


if __name__ == "__main__":
    main()
