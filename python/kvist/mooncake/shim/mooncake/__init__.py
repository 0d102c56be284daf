"""Stands before an installed `mooncake`: its other parts are found, mooncake.store is kvist.mooncake."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
