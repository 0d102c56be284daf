"""SGLang's own Mooncake client on kvist.mooncake: its storage backend, unchanged, with its package's own tests of it."""

import pytest

from conftest import Program

pytestmark = pytest.mark.slow  # SGLang takes its time to be imported

pytest.importorskip("sglang", reason="SGLang is not here: make test-engines ENGINE=sglang")

CODE = """
import sys
import kvist.mooncake
kvist.mooncake.as_mooncake()
from sglang.srt.mem_cache.storage.mooncake_store import test_mooncake_store as theirs
theirs.test_single_operation()
for mla, rank, size in ((False, 0, 1), (True, 0, 1), (False, 1, 4), (True, 3, 8)):
    theirs.test_batch_operation(theirs.make_hicache_storage_config(is_mla_model=mla, tp_rank=rank, tp_size=size))
assert theirs.MooncakeStore(theirs.make_hicache_storage_config(is_mla_model=False, tp_rank=0, tp_size=1)).clear() in (None, True)
print("passed")
"""


def test_its_own_tests_pass(node, monkeypatch):
    for name, value in {
        "MOONCAKE_MASTER": f"unix:{node.socket}",
        "MOONCAKE_PROTOCOL": "tcp",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "1gb",
    }.items():
        monkeypatch.setenv(name, value)
    with Program("import warnings; warnings.simplefilter('default')\n" + CODE) as program:
        code, out = program.finish(timeout=240)
    assert (code, out.splitlines()[-1:]) == (0, ["passed"])
