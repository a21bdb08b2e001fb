"""The commands ``gpushare`` and ``kubectl-gpushare``."""

from gpusharectl.app import cli


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
