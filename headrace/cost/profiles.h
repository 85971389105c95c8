// Machines that come with the program, by name: accelerators that a step can be planned for without
// having them. Each number's source, or the word "assumed", is in Machine::sources.
#pragma once

#include <string_view>
#include <vector>

#include "headrace/cost/machine.h"

namespace headrace {

struct MachineProfile {
  const char* name;
  const char* summary;  // one line, for lists
};
// In the order to list them in. "cpu" is not among them: it is whatever `headrace probe` measures.
const std::vector<MachineProfile>& machine_profiles();

// kUsage with the known names for any other.
Result<Machine> machine_by_name(std::string_view name);

}  // namespace headrace
