// python/module/batch.h: kvist.Batch, room in the pool that the caller fills itself, and kvist.Room, one block of it.
//
// Room that somebody can still write into must never become another block's: like pins (views.h), a reservation ends with
// the last view of it, and commit() refuses while there is one, because a store after the commit would change a block that
// others read.
#pragma once

#include "client.h"

namespace kvist::python {

PyObject* make_batch(State* state, const Shared& shared, Batch batch);

}  // namespace kvist::python
