"""``python -m kvist.doctor``: whether this machine has what Kvist needs, and what to do where not (= ``kvist doctor``)."""

import sys
from typing import NoReturn

from kvist import _binary


def main() -> NoReturn:
    _binary.become(["doctor", *sys.argv[1:]])


if __name__ == "__main__":
    main()
