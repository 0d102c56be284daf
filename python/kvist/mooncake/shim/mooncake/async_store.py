"""kvist.mooncake.async_store by the name of mooncake.async_store."""

import sys

import kvist.mooncake.async_store

sys.modules[__name__] = kvist.mooncake.async_store
