"""How many pages can be restored, from what is there of each pool.

A page of the KV pool is of use only with what the other pools need beside it; PoolTransfer.hit_policy says what that is:

| policy | a prefix of p pages can be restored if |
| --- | --- |
| ALL_PAGES | the pool has each of them |
| TRAILING_PAGES | it has the last len(transfer.keys) of them: a sliding window, or with one the state at the end |
| BLOCK_GROUPS | always: the pool is another form of the same pages, and only tells how far its whole groups reach |
"""

from __future__ import annotations

from collections.abc import Sequence


def leading(there: Sequence[bool]) -> int:
    """How many are there before the first that is not."""
    for i, one in enumerate(there):
        if not one:
            return i
    return len(there)


def windows(there: Sequence[bool], window: int) -> set[int]:
    """Lengths of prefixes whose last `window` pages (or all, if they are fewer) are there."""
    good, run = set(), 0
    for i, one in enumerate(there):
        run = run + 1 if one else 0
        if run >= min(window, i + 1):
            good.add(i + 1)
    return good


def groups(there: Sequence[bool], block_pages: int, group_pages: int, pages: int) -> int:
    """Pages covered by leading whole groups: group g is group_pages keys and stands for block_pages pages."""
    if block_pages < 1 or group_pages < 1:
        return 0
    whole = leading(there) // group_pages
    return min(whole * block_pages, pages)
