#include <atomic>

#include "headrace/kernel/kernel.h"

namespace headrace {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool has_avx512_vnni() {
#if defined(__x86_64__)
  return has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

Isa best_isa() {
  if (has_avx512_vnni()) return Isa::kAvx512Vnni;
  if (has_avx2()) return Isa::kAvx2;
  return Isa::kScalar;
}

std::atomic<Isa>& isa_in_force() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512Vnni: return "avx512_vnni";
  }
  return "?";
}

bool supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return has_avx2();
    case Isa::kAvx512Vnni: return has_avx512_vnni();
  }
  return false;
}

Isa current_isa() { return isa_in_force().load(std::memory_order_relaxed); }

void force_isa(Isa isa) {
  HR_CHECK(supported(isa), "the processor has the instruction set that is forced");
  isa_in_force().store(isa, std::memory_order_relaxed);
}

}  // namespace headrace
