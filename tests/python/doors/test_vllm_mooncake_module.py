"""vLLM's own Mooncake client on kvist.mooncake: the store of embeddings, unchanged, configured by its own file."""

import json

import pytest

import kvist
import kvist.mooncake
from conftest import stopped, wait_until

client_module = pytest.importorskip(
    "vllm.distributed.ec_transfer.ec_connector.mooncake_store_embedding.store_client",
    reason="needs vLLM: make test-engines ENGINE=vllm",
)


@pytest.fixture
def configured(node, tmp_path, monkeypatch):
    import sys

    for name in ("mooncake", "mooncake.store", "mooncake.async_store"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    kvist.mooncake.as_mooncake()
    file = tmp_path / "mooncake.json"
    settings = {"metadata_server": "P2PHANDSHAKE", "master_server_address": f"unix:{node.socket}", "protocol": "tcp"}
    file.write_text(json.dumps({**settings, "tenant_id": str(tmp_path), "global_segment_size": "1gb"}))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))


def test_embeddings_come_back(configured):
    import torch

    client = client_module.create_mooncake_embedding_store_client(read_buffer_bytes=1 << 20)
    tensors = {f"emb-{i}": torch.randn(3 + i, 64, dtype=torch.bfloat16 if i % 2 else torch.float32) for i in range(5)}
    for name, tensor in tensors.items():
        client.put_tensor(name, tensor)
    client.put_tensor("emb-0", torch.zeros(3, 64))  # the first stays
    assert client.batch_exists([*tensors, "absent"]) == [True] * 5 + [False]
    specs = {name: client_module.TensorSpec(tuple(x.shape), str(x.dtype), x.nbytes) for name, x in tensors.items()}
    loaded = client.load_tensors({**specs, "absent": specs["emb-0"]}, "cpu")
    assert loaded.keys() == tensors.keys() and all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    wrong = {"emb-1": client_module.TensorSpec((9, 64), "torch.bfloat16", 9 * 64 * 2)}
    assert client.load_tensors(wrong, "cpu") == {}
    client.close()


def test_no_failure_of_the_pool_ends_the_worker(tmp_path, monkeypatch):
    """Codes that this client takes for memory in use after the call would make it refuse all further work."""
    import torch

    store = kvist.mooncake.MooncakeDistributedStore()
    with kvist.Node(memory="64MiB", admin=None, socket=tmp_path / "node.sock") as node:
        settings = {"socket": node.socket, "deadline": 0.5, "verify": "always"}
        assert store.setup({"local_hostname": "h", "metadata_server": "m", "kvist": settings}) == 0
        client = client_module.MooncakeEmbeddingStoreClient(store, read_buffer_bytes=1 << 20)
        tensor = torch.randn(8, 64)
        spec = {"emb": client_module.TensorSpec((8, 64), "torch.float32", tensor.nbytes)}
        client.put_tensor("emb", tensor)
        with stopped(node):
            with pytest.raises(client_module.EmbeddingStoreOperationError):
                client.put_tensor("other", tensor)
            assert client.load_tensors(spec, "cpu")
    wait_until(lambda: store.is_exist("emb") == -900, "the client sees that the node is gone")
    with pytest.raises(client_module.EmbeddingStoreOperationError):
        client.put_tensor("other", tensor)
    assert client.load_tensors(spec, "cpu") == {} and client.batch_exists(["emb"]) == [False]
    with kvist.Node(memory="64MiB", admin=None, socket=tmp_path / "node.sock"):
        wait_until(lambda: store.is_exist("emb") == 0, "the node is found")
        client.put_tensor("emb", tensor)
        assert torch.equal(client.load_tensors(spec, "cpu")["emb"], tensor)
        client.close()


def test_a_node_that_is_not_there_is_told_at_the_start(configured, tmp_path, monkeypatch):
    file = tmp_path / "absent.json"
    settings = {"metadata_server": "P2PHANDSHAKE", "master_server_address": f"unix:{tmp_path}/none.sock", "protocol": "tcp"}
    file.write_text(json.dumps({**settings, "global_segment_size": "1gb"}))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))
    with pytest.raises(RuntimeError, match="Initialize MooncakeDistributedStore failed"):
        client_module.create_mooncake_embedding_store_client()
