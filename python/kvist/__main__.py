"""``python -m kvist`` and the ``kvist`` script: the kvist command."""

import sys
from typing import NoReturn

from kvist import _binary


def main() -> NoReturn:
    _binary.become(sys.argv[1:])


if __name__ == "__main__":
    main()
