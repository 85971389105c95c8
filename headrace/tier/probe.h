// Probe: how fast a file's device delivers, measured through the file tier itself.
#pragma once

#include <string>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/tier/file_tier.h"

namespace headrace {

struct ProbeOptions {
  Bytes bytes = 512 * kMiB;  // read sequentially, at most; from the start of the file
  int latency_reads = 64;    // of 4 KiB, one at a time, at places spread over the file
  FileTierOptions tier;      // queue depth, chunk and method to measure with
};

struct DiskRate {
  double bytes_per_s = 0;
  Nanos latency_ns = 0;  // the median of the small reads
  Bytes bytes = 0;       // that were read for bytes_per_s
  std::string method;    // describe().method of the tier that measured
  std::string notice;    // describe().notice of it
};

// Reads from `path` with always 2 x queue_depth chunks in flight (that much memory is
// used, and given back). With a method that goes through the page cache the rate may be
// RAM's: see `notice`. Writes nothing. kUsage for a file under 64 KiB or options out of
// range; else as open_file_tier() and Tier::wait().
Result<DiskRate> measure_read_rate(const std::string& path,
                                   const ProbeOptions& options = {});

}  // namespace headrace
