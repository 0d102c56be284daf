"""The door to vLLM: a KV connector that keeps an engine's KV blocks in the host's pool.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvistConnector", "kv_connector_module_path": "kvist.vllm",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

docs/engines/vllm.md is its page. Importing this package imports neither vLLM nor torch; KvistConnector does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvist.vllm.connector import KvistConnector

__all__ = ["KvistConnector", "register"]


def __getattr__(name: str) -> Any:
    if name == "KvistConnector":
        from kvist.vllm.connector import KvistConnector

        return KvistConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register() -> None:
    """Makes the connector known by its name alone, which MultiConnector needs. vLLM calls it in each of its processes (the
    wheel has it as an entry point of "vllm.general_plugins"); once more does no harm."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "KvistConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("KvistConnector", "kvist.vllm", "KvistConnector")
