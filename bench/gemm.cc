// Measures gemm.h, beside oneDNN where the bench was built with it: GF/s of the best of many short
// runs, the two taking turns so that a busy machine hurts both alike. One thread is timed by its
// CPU, more by the wall.
//
//   gemm_bench [--threads 1,2] [--type f32,bf16,f16] [--layout linear,dx,dw] [--repeat 12]
//              [--shapes 4096x512x512,...] [--isa avx2] [--residual 1]
//
// A shape is tokens x outputs x inputs of a linear layer; each layout prints its own m x n x k.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "headrace/kernel/gemm.h"
#include "headrace/kernel/half.h"
#ifdef HEADRACE_DNNL
#include <dnnl.hpp>
#include <omp.h>
#endif

namespace headrace {
namespace {

double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(by, at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte[], Free>;

Memory room(Bytes bytes) {
  return Memory(static_cast<std::byte*>(
      std::aligned_alloc(4096, static_cast<size_t>(round_up(bytes, 4096)))));
}

Memory numbers(DType type, int64_t count) {
  const size_t element = type == DType::kF32 ? 4 : 2;
  Memory bytes = room(count * static_cast<Bytes>(element));
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>((i * 7919 + i / 31) % 61 - 30) / 32;
    const uint16_t half = type == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
    std::memcpy(bytes.get() + static_cast<size_t>(i) * element,
                element == 2 ? static_cast<const void*>(&half) : &value, element);
  }
  return bytes;
}

struct Case {
  GemmLayout layout;
  DType type;
  int64_t m, n, k;
  int threads;
  bool residual = false;  // ours only
};

// Seconds of one call of the library; 0 without it.
class Library {
 public:
  Library(const Case& c, const GemmArgs& g) : g_(g) {
#ifdef HEADRACE_DNNL
    if (c.type == DType::kF16) return;  // which it has no product of on this processor
    omp_set_num_threads(c.threads);
    using dnnl::memory;
    const auto type = c.type == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
    const auto out = g.out_type == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
    const bool a_by_k = c.layout == GemmLayout::kDw, b_by_n = c.layout == GemmLayout::kLinear;
    const memory::dims a_strides = a_by_k ? memory::dims{1, c.m} : memory::dims{c.k, 1};
    const memory::dims b_strides = b_by_n ? memory::dims{1, c.k} : memory::dims{c.n, 1};
    const memory::desc a({c.m, c.k}, type, a_strides), b({c.k, c.n}, type, b_strides);
    const memory::desc y({c.m, c.n}, out, memory::dims{c.n, 1});
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, y), engine_);
    matmul_ = dnnl::matmul(description);
    memories_ = {{DNNL_ARG_SRC, memory(a, engine_, const_cast<std::byte*>(g.a))},
                 {DNNL_ARG_WEIGHTS, memory(b, engine_, const_cast<std::byte*>(g.b[0].data))},
                 {DNNL_ARG_DST, memory(y, engine_, g.c)}};
#else
    (void)c;
#endif
  }
  void run() {
#ifdef HEADRACE_DNNL
    if (memories_.empty()) return;
    matmul_.execute(stream_, memories_);
    stream_.wait();
#endif
  }

 private:
  const GemmArgs& g_;
#ifdef HEADRACE_DNNL
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> memories_;
#endif
};

void run(const Case& c, int repeat) {
  const Memory a = numbers(c.type, c.m * c.k), b = numbers(c.type, c.n * c.k);
  const Memory y = numbers(DType::kF32, c.m * c.n);
  const GemmRows rows{b.get(), c.layout == GemmLayout::kLinear ? c.n : c.k, nullptr};
  GemmArgs g;
  g.layout = c.layout;
  g.type = c.type;
  g.m = c.m, g.n = c.n, g.k = c.k;
  g.a = a.get();
  g.a_stride = c.layout == GemmLayout::kDw ? c.m : c.k;
  g.b = {&rows, 1};
  g.out_type = c.layout == GemmLayout::kDw ? DType::kF32 : c.type;
  g.c = y.get();
  g.c_stride = c.n;
  const Memory residual = numbers(g.out_type, c.m * c.n);
  if (c.residual) g.residual = residual.get();
  const Bytes bytes = gemm_workspace(g, c.threads);
  const Memory workspace = room(bytes);
  ThreadPool pool(c.threads);
  Library library(c, g);
  const clockid_t clock = c.threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  double ours = 1e9, theirs = 1e9;
  for (int i = 0; i <= repeat; ++i) {
    const double begin = seconds(clock);
    gemm(g, {workspace.get(), static_cast<size_t>(bytes)}, pool);
    const double middle = seconds(clock);
    library.run();
    const double end = seconds(clock);
    if (i == 0) continue;
    ours = std::min(ours, middle - begin);
    theirs = std::min(theirs, end - middle);
  }
  const double gflop = 2e-9 * static_cast<double>(c.m) * static_cast<double>(c.n * c.k);
  static const char* const kLayouts[] = {"linear", "dx", "dw"};
  std::printf("%-6s %-4s %5lld x %5lld x %5lld  threads %d  %6.1f GF/s", kLayouts[int(c.layout)],
              name_of(c.type), static_cast<long long>(c.m), static_cast<long long>(c.n),
              static_cast<long long>(c.k), c.threads, gflop / ours);
#ifdef HEADRACE_DNNL
  if (c.type != DType::kF16) {
    std::printf("  oneDNN %6.1f  ratio %.3f", gflop / theirs, theirs / ours);
  }
#endif
  std::printf("\n");
  std::fflush(stdout);
}

int main_of(int argc, char** argv) {
  std::string threads = "1,2", types = "f32", layouts = "linear,dx,dw";
  std::string repeat = "12", isa, residual;
  std::string shapes = "4096x512x512,4096x512x1408,4096x8192x512,4096x768x3072";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--threads") threads = argv[i + 1];
    if (name == "--type") types = argv[i + 1];
    if (name == "--layout") layouts = argv[i + 1];
    if (name == "--repeat") repeat = argv[i + 1];
    if (name == "--shapes") shapes = argv[i + 1];
    if (name == "--residual") residual = argv[i + 1];
    if (name == "--isa") isa = argv[i + 1];
  }
  if (isa == "avx2") force_isa(Isa::kAvx2);
  for (const std::string& type : split(types, ',')) {
    for (const std::string& layout : split(layouts, ',')) {
      for (const std::string& shape : split(shapes, ',')) {
        for (const std::string& t : split(threads, ',')) {
          Case c;
          c.layout = layout == "linear" ? GemmLayout::kLinear
                     : layout == "dx"   ? GemmLayout::kDx
                                        : GemmLayout::kDw;
          c.type = type == "bf16" ? DType::kBF16 : type == "f16" ? DType::kF16 : DType::kF32;
          const std::vector<std::string> mnk = split(shape, 'x');
          c.m = std::atoll(mnk[0].c_str());
          c.n = std::atoll(mnk[1].c_str());
          c.k = std::atoll(mnk[2].c_str());
          // The same three sizes of a linear layer: dx has n and k exchanged, dw sums over m.
          if (c.layout == GemmLayout::kDx) std::swap(c.n, c.k);
          if (c.layout == GemmLayout::kDw) c = {c.layout, c.type, c.n, c.k, c.m, 1};
          c.threads = std::atoi(t.c_str());
          c.residual = residual == "1" && c.layout != GemmLayout::kDw;
          run(c, std::atoi(repeat.c_str()));
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) { return headrace::main_of(argc, argv); }
