"""`python -m resolvent` and the command `resolvent`."""

import sys


def main() -> None:
    try:
        from .cli import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command needs {error.name}, which the extra [train] installs")


if __name__ == "__main__":
    main()
