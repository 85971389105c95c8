// What cannot fit, and why. Internal to plan/.
#pragma once

#include <string>
#include <vector>

#include "headrace/plan/problem.h"

namespace headrace::plan {

// Bytes that any plan holds at one time, whatever it does: at an op its operands, its workspace and
// what can neither move nor be made again; at the entry what is on the device then.
struct Need {
  Bytes bytes = 0;
  int32_t position = -1;      // -1: the entry
  Bytes workspace = 0;
  std::vector<int32_t> live;  // values, largest first
};
Need irreducible(const Problem& problem);
// The same for each position.
std::vector<Bytes> least_by_position(const Problem& problem);

// The certificate. `least`: the least budget known to succeed, at least problem.request->budget + 1;
// 0: none is known (then it is `need`).
Infeasible explain_infeasible(const Problem& problem, const Need& need, Bytes least);

}  // namespace headrace::plan
