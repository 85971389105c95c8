// A machine for those who have not run `headrace probe`: measured in at most half a second, once
// for each filesystem, and kept under $XDG_CACHE_HOME/headrace.
//
// Coarser than the verb: few repeats, little memory, and a file of at most 32 MiB, so that a disk's
// cache may flatter it. What there was no time for has the built-in default. Machine::name and
// Machine::sources say which is which.
#pragma once

#include <string>

#include "headrace/cost/machine.h"

namespace headrace {

// Where `headrace probe` writes and others look: $XDG_CACHE_HOME/headrace/machine.json, else
// ~/.cache/headrace/machine.json; empty when there is no home folder.
std::string cached_machine_path();

// Where the quick probe of the filesystem of `folder` is kept: by its id and the number of threads.
// Empty when there is no home folder or the system does not say the id.
std::string quick_probe_path(const std::string& folder, int threads);

// The machine kept for the filesystem of `folder`; measured and kept when there is none (or none
// that can be read). Never fails for want of a place to write: then it is measured each time. A
// folder that cannot be written, or is in memory (tmpfs), has the default rates of a disk.
Machine quick_machine(const std::string& folder, int threads);

}  // namespace headrace
