"""``python -m dpjax``: the same as the command ``dpjax``."""

from dpjax.cli import main

if __name__ == "__main__":
    main()
