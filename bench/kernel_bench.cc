// Measures matmul kernels: GB/s of weight bytes at few rows, GMAC/s at many.
//
//   kernel_bench [--threads 1,2] [--rows 1,128] [--types q4_1,...] [--k 2048]
//                [--isa scalar,avx2,avx512_vnni] [--mib 256 | --kib 512] [--repeat 5]
//
// The weight is `mib` MiB of random bytes (at least 8 outputs), touched before timing;
// each line is the median of `repeat` passes over it, in CPU time for one thread (at many
// rows the weight is cut so that a pass takes about a tenth of a second). Run on an idle
// machine; see docs/decisions/0001-arithmetic.md.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "headrace/kernel/matmul.h"
#include "headrace/kernel/quant.h"

namespace headrace {
namespace {

struct Options {
  std::vector<std::string> threads = {"1", "2"};
  std::vector<std::string> rows = {"1", "128"};
  std::vector<std::string> types = {"q4_1", "q8_0", "q4_k", "q6_k", "q5_0",
                                    "q4_0", "q5_1", "q5_k", "f16",  "bf16",
                                    "f32",  "q3_k", "q2_k"};
  std::vector<std::string> isas = {"scalar", "avx2", "avx512_vnni"};
  int64_t k = 2048, kib = 256 * 1024, repeat = 5;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

bool parse(int argc, char** argv, Options& o) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--threads")
      o.threads = split(value);
    else if (name == "--rows")
      o.rows = split(value);
    else if (name == "--types")
      o.types = split(value);
    else if (name == "--isa")
      o.isas = split(value);
    else if (name == "--k")
      o.k = std::atoll(value.c_str());
    else if (name == "--mib")
      o.kib = std::atoll(value.c_str()) * 1024;
    else if (name == "--kib")
      o.kib = std::atoll(value.c_str());
    else if (name == "--repeat")
      o.repeat = std::atoll(value.c_str());
    else
      return false;
  }
  return argc % 2 == 1;
}

std::byte* map_bytes(Bytes bytes) {
  void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    std::fprintf(stderr, "kernel_bench: cannot map %lld bytes\n",
                 static_cast<long long>(bytes));
    std::exit(1);
  }
  madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  std::memset(p, 0, static_cast<size_t>(bytes));
  return static_cast<std::byte*>(p);
}

double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Small random bytes, so that no f16 in them is an infinity and none is subnormal by
// chance.
void fill(std::byte* p, Bytes bytes) {
  std::mt19937 random(1);
  std::vector<uint32_t> page(16384);
  for (uint32_t& w : page) w = random() & 0x37ff37ff;
  for (Bytes at = 0; at < bytes; at += 65536) {
    std::memcpy(p + at, page.data(),
                static_cast<size_t>(std::min<Bytes>(65536, bytes - at)));
  }
}

struct Bench {
  const Options& o;
  std::byte* weight;

  void run(DType type, Isa isa, int threads, int64_t m) const {
    const Bytes row = row_bytes(type, o.k);
    int64_t n = o.kib * kKiB / row;
    if (m > 8)
      n = std::min<int64_t>(n, std::max<int64_t>(64, 15'000'000'000 / (m * o.k)));
    if (isa == Isa::kScalar) n = std::min<int64_t>(n, 16);
    const DType a_type = info(type).quantised ? DType::kActQ8 : DType::kF32;
    const Bytes stride = row_bytes(a_type, o.k);
    const Bytes scratch = matmul_scratch_bytes(type, o.k, m) * threads;
    std::byte* a = map_bytes(stride * m);
    std::byte* y = map_bytes(n * m * 4);
    std::byte* workspace = map_bytes(scratch + 64);
    std::vector<float> x(static_cast<size_t>(o.k), 0.5f);
    for (int64_t r = 0; r < m; ++r) {
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>((i * 7 + 3) % 13) - 6;
      if (a_type == DType::kActQ8)
        quantize_row(x.data(), o.k, a + r * stride);
      else
        std::memcpy(a + r * stride, x.data(), x.size() * 4);
    }
    MatmulArgs args;
    args.type = type;
    args.weight = weight;
    args.k = o.k;
    args.a = a;
    args.a_stride = stride;
    args.m = m;
    args.y = reinterpret_cast<float*>(y);
    args.y_stride = n;
    force_isa(isa);
    ThreadPool pool(threads);
    // One thread is timed by its CPU, which other programs on the machine do not use up.
    const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    // Small weights (which stay in a cache) are passed over often enough to be timed.
    const int64_t passes = 1 + (isa == Isa::kScalar ? 0 : 200'000'000 / (m * n * o.k));
    std::vector<double> times;
    for (int64_t i = 0; i <= o.repeat; ++i) {
      const double begin = seconds(clock);
      for (int64_t j = 0; j < passes; ++j) {
        matmul(args, n, {workspace, static_cast<size_t>(scratch)}, pool);
      }
      if (i > 0) times.push_back((seconds(clock) - begin) / static_cast<double>(passes));
    }
    std::sort(times.begin(), times.end());
    const double t = times[times.size() / 2];
    const double gb = static_cast<double>(row * n) / 1e9;
    const double gmac = static_cast<double>(m * n * o.k) / 1e9;
    std::printf(
        "%-5s %-12s threads %d rows %4lld n %7lld k %5lld: %8.2f GB/s %8.2f GMAC/s"
        " (best %.2f, %.2f)\n",
        name_of(type), name_of(isa), threads, static_cast<long long>(m),
        static_cast<long long>(n), static_cast<long long>(o.k), gb / t, gmac / t,
        gb / times[0], gmac / times[0]);
    std::fflush(stdout);
    munmap(a, static_cast<size_t>(stride * m));
    munmap(y, static_cast<size_t>(n * m * 4));
    munmap(workspace, static_cast<size_t>(scratch + 64));
  }
};

int bench_main(int argc, char** argv) {
  Options o;
  if (!parse(argc, argv, o)) {
    std::fprintf(stderr,
                 "kernel_bench: see the head of bench/kernel_bench.cc for its options\n");
    return 2;
  }
  const Bytes bytes = o.kib * kKiB;
  std::byte* weight = map_bytes(bytes);
  fill(weight, bytes);
  const Bench bench{o, weight};
  for (const std::string& rows : o.rows) {
    for (const std::string& type_name : o.types) {
      const auto type = dtype_from_name(type_name);
      if (!type.ok()) {
        std::fprintf(stderr, "kernel_bench: %s\n", type.status().message().c_str());
        return 2;
      }
      for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni}) {
        const bool asked = std::count(o.isas.begin(), o.isas.end(), name_of(isa)) > 0;
        if (!asked || !supported(isa)) continue;
        for (const std::string& threads : o.threads) {
          bench.run(*type, isa, std::atoi(threads.c_str()), std::atoll(rows.c_str()));
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::bench_main(argc, argv); }
