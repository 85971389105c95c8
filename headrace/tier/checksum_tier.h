// Checksum tier: any tier, whose loads are checked to bring back what stores wrote.
//
// Every page (4 KiB) that a store covers wholly gets a checksum (XXH3, 64 bits), kept in memory: 8
// bytes a page, 0.2 %, of which only those of pages ever stored are resident. wait() of a load
// compares each whole page that has one, on the calling thread or, when there are many, on all
// workers of a pool: 16 GB/s a core of a cloud EPYC for bytes that a disk has just brought. A
// difference is kIo, naming object and offset of the first such page.
// Pages never stored as a whole are not checked. A store to bytes that a load under way reads waits
// for that load first.
#pragma once

#include <memory>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/thread_pool.h"
#include "headrace/tier/tier.h"

namespace headrace {

// `objects`: sizes of the inner tier's objects that are checked, in their order; 0: not that one.
// `max_tickets` at most the inner tier's. `pool` (may be null; must outlive the tier) is used in
// load, store and wait, so that none of them may be called while it runs something else.
std::unique_ptr<Tier> make_checksum_tier(std::unique_ptr<Tier> inner,
                                         const std::vector<Bytes>& objects, int max_tickets = 256,
                                         ThreadPool* pool = nullptr);
// What it holds for objects of this many bytes in all.
Bytes checksum_memory(Bytes bytes);

}  // namespace headrace
