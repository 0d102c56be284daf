"""SGLang's own host pools and configurations, without a GPU: what the tests and the benchmark of kvist.sglang have in common.

Importing this module imports SGLang, which takes its time and warns about what is not here.
"""

import logging
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    import torch
    from sglang.srt.mem_cache.device_pool_info import (
        KVBufferLayout,
        KVBuffers,
        MambaStateBufferInfo,
        MHABufferInfo,
        MLABufferInfo,
    )
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheFile,
        HiCacheStorageConfig,
        HiCacheStorageExtraInfo,
        PoolHitPolicy,
        PoolName,
        PoolTransfer,
    )
    from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
    from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, MHATokenToKVPoolHost
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
    from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

__all__ = [
    "HiCacheFile",
    "HiCacheStorageExtraInfo",
    "MHATokenToKVPoolHost",
    "MLATokenToKVPoolHost",
    "PAGE",
    "PoolHitPolicy",
    "PoolName",
    "PoolTransfer",
    "backend_of",
    "buffers_of",
    "config",
    "fill",
    "mamba_pool",
    "mha_pool",
    "mla_pool",
    "paged_pool",
    "torch",
]

PAGE = 16  # tokens


def _pointers(tensors):
    return torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64)


def mha_pool(layout="page_first", *, tokens=640, layers=4, heads=4, dim=32, v_dim=None, page=PAGE,
             dtype=torch.bfloat16, allocator="default", first_layer=0):
    """A host pool of attention heads: keys and values of `layers` layers. dim, v_dim: elements a head."""
    v_dim = v_dim or dim
    # The device's side is looked at, never copied from: one token is enough.
    k = tuple(torch.zeros(1, heads, dim, dtype=dtype) for _ in range(layers))
    v = tuple(torch.zeros(1, heads, v_dim, dtype=dtype) for _ in range(layers))
    buffers = KVBuffers(k=k, v=v, k_data_ptrs=_pointers(k), v_data_ptrs=_pointers(v), layout=KVBufferLayout.NHD)
    info = MHABufferInfo(
        buffers=buffers, page_size=page, head_num=heads, head_dim=dim, v_head_dim=v_dim, dtype=dtype, device=torch.device("cpu")
    )
    kind = MHATokenToKVPoolHost if v_dim == dim else AsymmetricMHATokenToKVPoolHost
    return kind(
        info, 1.0, 0, page, layout, pin_memory=False, device="cpu", allocator_type=allocator,
        device_capacity_tokens=tokens, start_layer=first_layer, end_layer=first_layer + layers,
    )


def mla_pool(layout="page_first", *, tokens=640, layers=4, rank=48, rope=16, page=PAGE, dtype=torch.bfloat16, allocator="default"):
    """A host pool of latent KV, the same on every tensor-parallel rank."""
    rows = tuple(torch.zeros(1, 1, rank + rope, dtype=dtype) for _ in range(layers))
    info = MLABufferInfo(
        buffers=rows, data_ptrs=_pointers(rows), layer_indices=tuple(range(layers)), device_layer_num=layers, page_size=page,
        kv_lora_rank=rank, qk_rope_head_dim=rope, kv_cache_dim=rank + rope, dtype=dtype, device=torch.device("cpu"),
    )
    return MLATokenToKVPoolHost(
        info, 1.0, 0, page, layout, pin_memory=False, device="cpu", allocator_type=allocator,
        device_capacity_tokens=tokens, start_layer=0, end_layer=layers, target_layer_num=layers,
    )


def mamba_pool(*, slots=40, layers=3, layout="page_first", side_states=False):
    """A host pool of recurrent states, one index a page. With side states it tells no addresses."""
    info = MambaStateBufferInfo(
        temporal=torch.zeros(layers, 1, 4, 8, dtype=torch.float32),
        conv=(torch.zeros(layers, 1, 24, 3, dtype=torch.bfloat16),),
        extra_checkpoint_buffers=(torch.zeros(1, 5, dtype=torch.float32),) if side_states else (),
    )
    return MambaPoolHost(info, 1.0, 0, device_capacity=slots, pin_memory=False, device="cpu", layout=layout)


def paged_pool(layout="page_first", *, pages=40, layers=3, row=96):
    """A side pool of a model with compressed KV: a row of bytes for each layer and page."""
    rows = [torch.zeros(1, row, dtype=torch.uint8) for _ in range(layers)]
    return DeepSeekV4PagedHostPool("side", rows, row, pages, PAGE, layout=layout, pin_memory=False)


def buffers_of(pool):
    """The tensors that a pool's pages lie in."""
    single = getattr(pool, "kv_buffer", None)
    return [single] if hasattr(single, "data_ptr") else list(single)


def fill(pool, seed):
    """Random bytes all over a pool: each page differs from every other. Returns copies of its buffers."""
    generator = torch.Generator().manual_seed(seed)
    for buffer in buffers_of(pool):
        flat = buffer.view(-1).view(torch.uint8)
        flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=generator))
    return [buffer.clone() for buffer in buffers_of(pool)]


def config(socket=None, *, tp=(0, 1), pp=(0, 1), cp=(0, 1), mla=False, model="org/model", lcm=None, layout="page_first",
           metrics=False, **extra):
    """What SGLang hands a backend. tp, pp, cp: (rank, size)."""
    ours = {"socket": str(socket), "deadline": "2s"} if socket is not None else {}
    return HiCacheStorageConfig(
        tp_rank=tp[0], tp_size=tp[1], pp_rank=pp[0], pp_size=pp[1], attn_cp_rank=cp[0], attn_cp_size=cp[1], is_mla_model=mla,
        enable_storage_metrics=metrics, is_page_first_layout=layout == "page_first", model_name=model, tp_lcm_size=lcm,
        should_split_heads=bool(lcm and lcm > tp[1] and layout == "page_head" and not mla),
        extra_config={"backend_name": "kvist", "module_path": "kvist.sglang", "class_name": "KvistHiCache", "interface_v1": 1,
                      "hicache_storage_pass_prefix_keys": True, **ours, **extra},
    )


def backend_of(given, pools):
    """A backend as SGLang makes one: by its factory, then the anchor, then all pools by name."""
    pools = pools if isinstance(pools, dict) else {PoolName.KV: pools}
    anchor = next(iter(pools.values()))
    made = StorageBackendFactory.create_backend("dynamic", given, anchor)
    made.register_mem_pool_host(anchor)
    for name, pool in pools.items():
        made.register_mem_host_pool_v2(pool, name)
    made.on_host_pools_registered()
    return made
