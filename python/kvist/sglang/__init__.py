"""Kvist as the storage tier of SGLang's hierarchical cache: the class for ``--hicache-storage-backend dynamic``.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "kvist",
        "module_path": "kvist.sglang", "class_name": "KvistHiCache", "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": true}'

The page is docs/engines/sglang.md. Importing this module imports SGLang's storage interface, and nothing else does.
"""

from kvist.sglang._backend import KvistHiCache

__all__ = ["KvistHiCache"]
