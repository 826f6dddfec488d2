"""``python -m dpjax`` and the command ``dpjax``: says so when the command line's packages are missing."""

import sys


def main() -> None:
    """Runs the command line on ``sys.argv`` and exits with its status."""
    try:
        from dpjax import cli
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        print("dpjax: the command line needs typer and rich: pip install 'dpjax[cli]'", file=sys.stderr)
        sys.exit(1)
    sys.exit(cli.run(sys.argv[1:]))


if __name__ == "__main__":
    main()
