// What a step of a batch session costs by its rows, beside what its plan says.
//   batch_step MODEL MEMORY [THREADS [POSITION [PLACES]]]
// Decode rows are of as many sequences, each at about POSITION; then chunks of one prompt.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/cost/machine.h"
#include "headrace/session/batch_session.h"

namespace headrace {
namespace {

constexpr int kRepeats = 7;

double ms(Nanos ns) { return static_cast<double>(ns) / 1e6; }

// A step of each part; the median of the later repeats.
Result<Nanos> time_step(BatchSession& session, std::span<const KvSequence> sequences,
                        int64_t tokens, double* loaded_mib) {
  std::vector<Nanos> took;
  std::vector<int32_t> text(static_cast<size_t>(tokens), 100);
  Bytes before = 0;
  for (int i = 0; i < kRepeats; ++i) {
    std::vector<BatchSession::Part> parts;
    for (KvSequence s : sequences) {
      for (int32_t& t : text) t = 100 + (t * 31 + 7 * s.value + i) % 5000;
      parts.push_back({s, text, 1});
    }
    before = session.moved().loaded;
    const Nanos begin = monotonic_ns();
    const auto logits = session.step(parts);
    if (!logits.ok()) return logits.status();
    if (i > 1) took.push_back(monotonic_ns() - begin);
    *loaded_mib = static_cast<double>(session.moved().loaded - before) / (1 << 20);
  }
  std::sort(took.begin(), took.end());
  return took[took.size() / 2];
}

Status measure(const std::string& path, Bytes memory, int threads, int64_t position,
               int32_t places) {
  HR_ASSIGN(const std::unique_ptr<Model> model, load_model(path));
  BatchOptions o;
  o.memory_bytes = memory;
  o.threads = threads;
  o.places = places;
  o.context = round_up(position + 128, 256);
  o.typical_tokens = o.context;
  o.machine = Machine::defaults(threads);
  const Nanos begin = monotonic_ns();
  HR_ASSIGN(BatchPlan plan, plan_batch(*model, o));
  const PlanSummary sum = summarize(plan.step);
  std::printf("planned in %.0f ms: %d blocks of %s, weights %s resident, %s streamed\n",
              ms(monotonic_ns() - begin), plan.options.blocks,
              human_bytes(plan.block_bytes).c_str(), human_bytes(sum.resident_bytes).c_str(),
              human_bytes(sum.streamed_bytes).c_str());
  HR_ASSIGN(auto session, BatchSession::start(*model, std::move(plan)));
  std::vector<KvSequence> all;
  std::vector<int32_t> text(256);
  const BatchPlan& p = session->plan();
  const int64_t fit = std::min<int64_t>(places, p.options.blocks / p.blocks_of(position + 80));
  for (int64_t i = 0; i < fit; ++i) {
    HR_ASSIGN(const KvSequence s, session->open());
    all.push_back(s);
    for (int64_t at = 0; at < position; at += 256) {
      const auto n = static_cast<size_t>(std::min<int64_t>(256, position - at));
      for (size_t k = 0; k < n; ++k) text[k] = static_cast<int32_t>(50 + (at + i * 7 + k) % 900);
      BatchSession::Part part{s, std::span<const int32_t>(text).first(n), 0};
      HR_TRY(session->step({&part, 1}).status());
    }
  }
  std::printf("%8s %10s %10s %10s %12s\n", "rows", "ms", "ms a row", "planned", "MiB loaded");
  const auto line = [&](const char* what, int64_t rows, Nanos took, double mib) {
    std::printf("%-3s %4lld %10.2f %10.2f %10.2f %12.1f\n", what, static_cast<long long>(rows),
                ms(took), ms(took) / static_cast<double>(rows), ms(p.step_ns(rows)), mib);
  };
  double mib = 0;
  for (size_t rows : {1, 2, 4, 8, 16, 32, 64}) {
    if (rows > all.size()) break;
    HR_ASSIGN(const Nanos took, time_step(*session, std::span(all).first(rows), 1, &mib));
    line("", static_cast<int64_t>(rows), took, mib);
  }
  for (KvSequence s : all) HR_TRY(session->close(s));
  for (int64_t rows : {8, 16, 64}) {
    HR_ASSIGN(const KvSequence s, session->open());
    HR_ASSIGN(const Nanos took, time_step(*session, {&s, 1}, rows, &mib));
    line("of 1", rows, took, mib);
    HR_TRY(session->close(s));
  }
  std::printf("VmHWM %s of %s\n", human_bytes(process_memory().peak_rss).c_str(),
              human_bytes(memory).c_str());
  return {};
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "batch_step MODEL MEMORY [THREADS [POSITION [PLACES]]]\n");
    return 2;
  }
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  const auto memory = headrace::parse_size(argv[2], 0);
  const headrace::Status status =
      !memory.ok() ? memory.status()
                   : headrace::measure(argv[1], *memory, number(3, 2), number(4, 300),
                                       number(5, 64));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
