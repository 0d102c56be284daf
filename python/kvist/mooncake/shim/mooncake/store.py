"""kvist.mooncake by the name of mooncake.store."""

import sys

import kvist.mooncake

sys.modules[__name__] = kvist.mooncake
