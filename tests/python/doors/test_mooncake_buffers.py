"""kvist.mooncake.BufferPool with several threads that wait for room."""

import threading

import kvist.mooncake as ours
from conftest import wait_until
from mooncake_rig import kvist_store  # noqa: F401


def test_a_buffer_that_is_too_small_for_one_waits_for_no_other(kvist_store):
    pool = ours.BufferPool(kvist_store, max_bytes=3 << 12, min_size_class=1 << 12)
    held = [pool.acquire(1 << 12) for _ in range(3)]
    got = []
    large = threading.Thread(target=lambda: got.append(pool.acquire(1 << 13, timeout=60)), daemon=True)
    large.start()
    wait_until(lambda: len(pool._changed._waiters) == 1, "one waits for two buffers' room")
    small = threading.Thread(target=lambda: got.append(pool.acquire(1 << 12, timeout=60)), daemon=True)
    small.start()
    wait_until(lambda: len(pool._changed._waiters) == 2, "another waits for one's")
    held.pop().release()
    wait_until(lambda: got, "the one that it is enough for has it")
    assert [lease.size for lease in got] == [1 << 12]
    held.pop().release()
    held.pop().release()
    for thread in (small, large):
        thread.join(60)
    assert [lease.size for lease in got] == [1 << 12, 1 << 13]
    for lease in got:
        lease.release()
    pool.close()
