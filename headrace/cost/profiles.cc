#include "headrace/cost/profiles.h"

namespace headrace {
namespace {

constexpr double kTB = 1e12, kGB = 1e9, kTFlop = 1e12;
// What large matrix products reach of a data sheet's dense peak, and streaming kernels of the
// memory's.
constexpr double kMatmulShare = 0.6;
constexpr double kMemoryShare = 0.85;

// An accelerator by its data sheet.
struct Chip {
  double half_flops = 0;    // f16 and bf16, dense, FLOPs a second
  double single_flops = 0;  // f32 by whatever the libraries use for it
  double memory = 0;        // bytes a second
  Bytes capacity = 0;
  Nanos overhead_ns = 0;    // from one kernel's end to the next one's begin
  const char* source = "";  // of the four numbers above the overhead
};

Machine accelerator(const char* name, const Chip& chip) {
  Machine m = Machine::defaults(1);
  m.name = name;
  m.memory_bytes_per_s = kMemoryShare * chip.memory;
  for (int i = 0; i < kDTypeCount; ++i) {
    const bool single = static_cast<DType>(i) == DType::kF32;
    m.matmul_per_s[static_cast<size_t>(i)] =
        kMatmulShare * (single ? chip.single_flops : chip.half_flops) / 2;
    m.matvec_bytes_per_s[static_cast<size_t>(i)] = m.memory_bytes_per_s;
  }
  m.vector_per_s = m.memory_bytes_per_s / 8;
  m.op_overhead_ns = chip.overhead_ns;
  m.tiers = {{"device", chip.capacity, 0, 0, 0}};
  const std::string sheet = chip.source;
  m.sources["matmul_per_s"] =
      sheet + "; assumed: 60 % of the dense peak is reached, other types run at the rate of f16";
  m.sources["memory_bytes_per_s"] = sheet + "; assumed: 85 % of the peak is reached";
  m.sources["matvec_bytes_per_s"] = "memory_bytes_per_s";
  m.sources["vector_per_s"] = "memory_bytes_per_s at 8 bytes an element (f32 read and written)";
  m.sources["op_overhead_ns"] = "assumed";
  m.sources["tiers.device"] = sheet;
  return m;
}

void add_link(Machine* m, const TierInfo& tier, const char* source) {
  m->tiers.push_back(tier);
  m->tiers.back().duplex = true;
  m->sources[std::string("tiers.") + tier.name] = source;
}

// One of the two dies of an Ascend 910C package: software sees each as a device of its own.
Machine ascend(const char* name, double pool_bytes_per_s, const char* pool_source) {
  Machine m = accelerator(
      name, {376 * kTFlop, 94 * kTFlop, 1.6 * kTB, 64 * static_cast<Bytes>(kGB), 5000,
             "one die of two: 376 TFLOPS bf16 dense, 64 GB, 1.6 TB/s (Zuo et al., Serving Large "
             "Language Models on Huawei CloudMatrix384, arXiv 2506.12708); f32 94 TFLOPS assumed"});
  add_link(&m, {"host", 512 * kGiB, 25 * kGB, 25 * kGB, 10'000},
           "assumed: PCIe 4.0 x16, 31.5 GB/s each way by specification, of which 80 % are reached; "
           "capacity, latency and duplex assumed");
  add_link(&m, {"remote", 1024 * kGiB, pool_bytes_per_s, pool_bytes_per_s, 10'000}, pool_source);
  return m;
}

Machine h200() {
  Machine m = accelerator(
      "h200-pcie5", {989.5 * kTFlop, 494.7 * kTFlop, 4.8 * kTB, 141 * static_cast<Bytes>(kGB), 3000,
                     "NVIDIA H200 SXM data sheet: 989.5 TFLOPS bf16 and 494.7 TF32 dense, "
                     "141 GB, 4.8 TB/s"});
  add_link(&m, {"host", 1024 * kGiB, 53 * kGB, 53 * kGB, 10'000},
           "assumed: PCIe 5.0 x16, 63.0 GB/s each way by specification, of which 84 % are reached "
           "from page-locked memory; capacity, latency and duplex assumed");
  return m;
}

Machine gh200() {
  Machine m = accelerator(
      "gh200", {989.5 * kTFlop, 494.7 * kTFlop, 4.0 * kTB, 96 * static_cast<Bytes>(kGB), 3000,
                "NVIDIA GH200 data sheet (HBM3): 989.5 TFLOPS bf16 and 494.7 TF32 dense, "
                "96 GB, 4.0 TB/s"});
  add_link(&m, {"host", 480 * static_cast<Bytes>(kGB), 375 * kGB, 297 * kGB, 2000},
           "NVLink-C2C, 450 GB/s each way by specification; 375 to and 297 GB/s from the device "
           "measured by Schieffer et al., arXiv 2407.07850; 480 GB LPDDR5X by the data sheet; "
           "latency and duplex assumed");
  return m;
}

Machine rtx4090() {
  Machine m =
      accelerator("rtx4090-pcie4-nvme",
                  {165.2 * kTFlop, 82.6 * kTFlop, 1.008 * kTB, 24 * kGiB, 5000,
                   "NVIDIA Ada GPU architecture white paper, RTX 4090: 165.2 TFLOPS bf16 with "
                   "f32 sums and 82.6 TF32 dense, 24 GB, 1,008 GB/s"});
  add_link(&m, {"host", 64 * kGiB, 25 * kGB, 25 * kGB, 10'000},
           "assumed: PCIe 4.0 x16, 31.5 GB/s each way by specification, of which 80 % are reached; "
           "capacity, latency and duplex assumed");
  add_link(&m, {"file", 1024 * kGiB, 6.5 * kGB, 4 * kGB, 100'000},
           "assumed: an NVMe drive on PCIe 4.0 x4; that its copies cross the device's link as well "
           "is left out (at most a quarter of that link)");
  m.tiers.back().duplex = false;
  return m;
}

Machine a100() {
  Machine m = accelerator(
      "a100-pcie3", {312 * kTFlop, 156 * kTFlop, 1.555 * kTB, 40 * kGiB, 3000,
                     "NVIDIA A100 40 GB data sheet: 312 TFLOPS bf16 and 156 TF32 dense, 40 GB, "
                     "1,555 GB/s"});
  add_link(&m, {"host", 512 * kGiB, 15.754 * kGB, 15.754 * kGB, 0},
           "PCIe 3.0 x16 by specification, as Zhang et al. (G10, MICRO 2023) simulate it; no "
           "latency; capacity and duplex assumed");
  return m;
}

}  // namespace

const std::vector<MachineProfile>& machine_profiles() {
  static const std::vector<MachineProfile> kProfiles = {
      {"ascend-910c-node", "Ascend 910C die, 64 GB; host 25 GB/s, remote pool 33.6 GB/s"},
      {"ascend-910c-node-70", "the same with a remote pool of 70 GB/s"},
      {"h200-pcie5", "H200, 141 GB; host over PCIe 5.0, 53 GB/s"},
      {"gh200", "GH200, 96 GB; host over NVLink-C2C, 375 GB/s in and 297 GB/s out"},
      {"rtx4090-pcie4-nvme", "RTX 4090, 24 GB; host 25 GB/s, NVMe 6.5 GB/s"},
      {"a100-pcie3", "A100, 40 GB; host 15.754 GB/s: the machine of the G10 traces"},
  };
  return kProfiles;
}

Result<Machine> machine_by_name(std::string_view name) {
  if (name == "ascend-910c-node") {
    return ascend("ascend-910c-node", 33.6 * kGB,
                  "33.6 GB/s: as reported for supernode memory pools by the makers of such nodes; "
                  "capacity, latency and duplex assumed");
  }
  if (name == "ascend-910c-node-70") {
    return ascend("ascend-910c-node-70", 70 * kGB,
                  "70 GB/s: the faster of the two pool links reported by the makers of such nodes; "
                  "capacity, latency and duplex assumed");
  }
  if (name == "h200-pcie5") return h200();
  if (name == "gh200") return gh200();
  if (name == "rtx4090-pcie4-nvme") return rtx4090();
  if (name == "a100-pcie3") return a100();
  std::string known;
  for (const MachineProfile& p : machine_profiles()) {
    known += std::string(known.empty() ? "" : ", ") + p.name;
  }
  return error(Code::kUsage, "there is no machine '%s' (%s)", std::string(name).c_str(),
               known.c_str());
}

}  // namespace headrace
