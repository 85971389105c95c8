// What the system says about time, processors and disks.
#pragma once

#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

// Nanoseconds of CLOCK_MONOTONIC.
Nanos monotonic_ns();

// The CPUs that the calling thread may run on, ascending; empty when the system does not say.
std::vector<int> allowed_cpus();

// The number of them, at least 1: how many threads compute where nobody says.
int default_threads();

// Bytes that this process may still write to the filesystem of `folder`. kIo, naming the folder.
Result<Bytes> free_on_disk(const std::string& folder);

struct FolderFacts {
  bool in_memory = false;  // tmpfs, ramfs
  Bytes free_bytes = 0;
};
// Of the filesystem of a folder that is there. kIo.
Result<FolderFacts> look_at_folder(const std::string& folder);

// Where scratch files go when nobody says: the first of $TMPDIR, /var/tmp and the current folder
// that is on a disk and can be written to; empty where none is.
std::string scratch_folder();

}  // namespace headrace
