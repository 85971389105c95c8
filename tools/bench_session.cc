#include "tools/bench_session.h"

#include <algorithm>
#include <cmath>

#include "headrace/base/split_mix.h"
#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/kernel/half.h"
#include "headrace/kernel/kv_codec.h"
#include "headrace/kernel/kv_layout.h"
#include "headrace/report/json_writer.h"
#include "headrace/session/session.h"
#include "headrace/tier/emulated_tier.h"
#include "tools/console.h"
#include "tools/prompt.h"

namespace headrace::cli {
namespace {

// Different tiles that stand for all of a layer's.
constexpr int64_t kDrawnTiles = 8;
// Tiles written at once.
constexpr int64_t kRun = 64;

template <typename T>
void write_list(const char* name, const std::vector<T>& values, JsonWriter& json) {
  json.key(name).begin_array();
  for (const T x : values) json.value(x);
  json.end_array();
}

double seconds(Nanos ns) { return static_cast<double>(ns) / 1e9; }

struct KvRow {
  int64_t positions = 0;
  std::vector<double> steps_s, wait_s;
  std::vector<int64_t> kv_loaded, loaded;
};

class KvBench {
 public:
  explicit KvBench(const BenchKvOptions& options) : o_(options) {}

  Status run() {
    for (const int64_t p : o_.positions) {
      if (p <= 0 || p % kKvTile != 0) {
        return error(Code::kUsage, "--positions %lld: multiples of %lld", static_cast<long long>(p),
                     static_cast<long long>(kKvTile));
      }
    }
    HR_ASSIGN(Setup setup, read_setup(o_.budget));
    HR_ASSIGN(model_, load_model(o_.budget.model));
    SessionOptions& s = setup.session;
    const int64_t most = *std::max_element(o_.positions.begin(), o_.positions.end());
    s.greedy = true;
    s.context = std::max(s.context, context_bucket(most + o_.steps));
    // The plan is for the middle of what is decoded here.
    s.prompt_tokens = most;
    s.new_tokens = o_.steps;
    // What is drawn, what is put together, and the page-aligned copy of it that a disk takes.
    s.beside_bytes = (kDrawnTiles + 2 * kRun) * kv_tile_bytes(s.kv_format, model_->config.kv_heads,
                                                              model_->config.head_dim);
    HR_ASSIGN(SessionPlan plan, plan_session(*model_, s));
    summary_ = summarize(plan.decode, most);
    HR_ASSIGN(session_, Session::start(*model_, std::move(plan), stop_flag(), wrap()));
    draw_tiles();
    std::vector<KvRow> rows;
    for (const int64_t p : o_.positions) {
      HR_TRY(fill(p));
      HR_ASSIGN(KvRow row, decode(p));
      if (!o_.json) HR_TRY(print_output(text_of_row(row)));
      rows.push_back(std::move(row));
    }
    return print_output(o_.json ? json_of(rows, setup.session.memory_bytes) : closing());
  }

 private:
  WrapTier wrap() const {
    if (o_.link_bytes_per_s <= 0) return nullptr;
    return [rate = o_.link_bytes_per_s](std::unique_ptr<Tier> inner) {
      LinkModel link;
      link.bytes_per_s = rate;
      return open_emulated_tier(std::move(inner), std::make_shared<EmulatedLink>(link));
    };
  }

  // Keys and values of about the size that models have.
  void draw_tiles() {
    const ModelConfig& c = model_->config;
    const int64_t padded = padded_head_dim(c.head_dim);
    const KvFormat format = session_->plan().options.kv_format;
    const Bytes part = kv_tile_bytes(format, 1, c.head_dim) / 2;
    std::vector<uint16_t> rows(static_cast<size_t>(kKvTile * padded));
    tile_bytes_ = 2 * c.kv_heads * part;
    tiles_.resize(static_cast<size_t>(kDrawnTiles * tile_bytes_));
    uint64_t draw = 0;
    for (int64_t i = 0; i < kDrawnTiles * 2 * c.kv_heads; ++i) {
      for (uint16_t& x : rows) {
        const auto value = static_cast<float>(2 * unit_of(mixed(o_.fill + kSplitMixStep * ++draw)) - 1);
        x = format == KvFormat::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
      }
      kv_encode_part(format, rows.data(), c.head_dim, tiles_.data() + i * part);
    }
  }

  Status fill(int64_t positions) {
    session_->reset();
    std::vector<std::byte> run;
    for (int64_t layer = 0; layer < model_->config.layers; ++layer) {
      for (int64_t tile = 0; tile < positions / kKvTile; tile += kRun) {
        const int64_t end = std::min(tile + kRun, positions / kKvTile);
        run.clear();
        for (int64_t t = tile; t < end; ++t) {
          const int64_t which =
              static_cast<int64_t>(mixed(static_cast<uint64_t>(t * 64 + layer)) % kDrawnTiles);
          const auto* from = tiles_.data() + which * tile_bytes_;
          run.insert(run.end(), from, from + tile_bytes_);
        }
        HR_TRY(session_->write_kv(layer, tile, end, run));
      }
    }
    return session_->set_position(positions);
  }

  Result<KvRow> decode(int64_t positions) {
    KvRow row;
    row.positions = positions;
    int32_t token = 1;
    for (int64_t step = 0; step < o_.steps; ++step) {
      const Executor::Moved before = session_->moved();
      const Nanos begin = monotonic_ns();
      HR_ASSIGN(const auto logits, session_->append(std::span<const int32_t>(&token, 1)));
      row.steps_s.push_back(seconds(monotonic_ns() - begin));
      const Executor::Moved& after = session_->moved();
      row.wait_s.push_back(seconds(after.load_wait_ns - before.load_wait_ns));
      row.kv_loaded.push_back(after.kv_loaded - before.kv_loaded);
      row.loaded.push_back(after.loaded - before.loaded);
      token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    }
    return row;
  }

  static double median(std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
    return x[x.size() / 2];
  }

  static std::string text_of_row(const KvRow& r) {
    return text_of("%9s positions: %s a step, %s of KV and %s of weights read\n",
                   grouped(r.positions).c_str(),
                   human_time(static_cast<Nanos>(1e9 * median(r.steps_s))).c_str(),
                   human_bytes(r.kv_loaded.back()).c_str(),
                   human_bytes(r.loaded.back() - r.kv_loaded.back()).c_str());
  }

  std::string closing() const {
    return text_of("KV: %s in memory, up to %s on disk; peak %s\n",
                   human_bytes(summary_.state_bytes).c_str(),
                   human_bytes(summary_.kv_copy_bytes).c_str(),
                   human_bytes(process_memory().peak_rss).c_str());
  }

  std::string json_of(const std::vector<KvRow>& rows, Bytes budget) const {
    JsonWriter json;
    json.begin_object().field("budget_bytes", budget);
    json.field("peak_rss_bytes", process_memory().peak_rss);
    json.field("kv_bytes", session_->plan().kv.total());
    json.field("kv_disk_bytes", summary_.kv_copy_bytes);
    json.field("kv_resident_bytes", summary_.state_bytes);
    json.field("weights_streamed_bytes", summary_.streamed_bytes);
    json.field("predicted_s", seconds(summary_.predicted_ns));
    json.key("rows").begin_array();
    for (const KvRow& r : rows) {
      json.begin_object().field("positions", r.positions);
      write_list("steps_s", r.steps_s, json);
      write_list("wait_s", r.wait_s, json);
      write_list("kv_loaded_bytes", r.kv_loaded, json);
      write_list("loaded_bytes", r.loaded, json);
      json.end_object();
    }
    json.end_array().end_object();
    return json.take();
  }

  const BenchKvOptions& o_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Session> session_;
  PlanSummary summary_;
  Bytes tile_bytes_ = 0;
  std::vector<std::byte> tiles_;
};

// Adds -log p of each token of `ids` after `at` rows of logits.
double surprise(std::span<const float> logits, std::span<const int32_t> next, size_t vocab) {
  double total = 0;
  for (size_t i = 0; i < next.size(); ++i) {
    const auto row = logits.subspan(i * vocab, vocab);
    const float most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x - most));
    total += std::log(sum) - static_cast<double>(row[static_cast<size_t>(next[i])] - most);
  }
  return total;
}

}  // namespace

Status bench_kv(const BenchKvOptions& options) { return KvBench(options).run(); }

Status bench_perplexity(const BenchPerplexityOptions& o) {
  HR_ASSIGN(Setup setup, read_setup(o.budget));
  HR_ASSIGN(const auto model, load_model(o.budget.model));
  HR_ASSIGN(const std::string text, read_file(o.text));
  HR_ASSIGN(const std::vector<int32_t> ids, encode_plain(*model, text));
  SessionOptions& s = setup.session;
  s.greedy = s.all_logits = true;
  s.context = std::max(s.context, context_bucket(o.window + 1));
  s.prompt_tokens = o.window;
  s.beside_bytes = static_cast<Bytes>(text.capacity() + ids.capacity() * sizeof(int32_t));
  HR_ASSIGN(SessionPlan plan, plan_session(*model, s));
  const int64_t chunk = plan.chunk;
  HR_ASSIGN(const auto session, Session::start(*model, std::move(plan), stop_flag()));
  const auto vocab = static_cast<size_t>(model->config.vocab);
  double total = 0;
  int64_t count = 0;
  const auto available = static_cast<int64_t>(ids.size()) / o.window;
  if (available < o.windows) {
    return error(Code::kUsage, "%s has %zu tokens, %lld windows of %lld are %lld", o.text.c_str(),
                 ids.size(), static_cast<long long>(o.windows), static_cast<long long>(o.window),
                 static_cast<long long>(o.windows * o.window));
  }
  for (int64_t w = 0; w < o.windows; ++w) {
    session->reset();
    const auto all = std::span<const int32_t>(ids).subspan(static_cast<size_t>(w * o.window),
                                                           static_cast<size_t>(o.window));
    for (int64_t at = 0; at < o.window; at += chunk) {
      const int64_t rows = std::min(chunk, o.window - at);
      HR_ASSIGN(const auto logits, session->append(all.subspan(static_cast<size_t>(at),
                                                               static_cast<size_t>(rows))));
      const int64_t scored = std::min(rows, o.window - 1 - at);
      total += surprise(logits, all.subspan(static_cast<size_t>(at + 1), static_cast<size_t>(scored)),
                        vocab);
      count += scored;
    }
  }
  const double perplexity = std::exp(total / static_cast<double>(count));
  if (!o.json) {
    return print_output(text_of("perplexity %.4f over %s tokens, KV as %s\n", perplexity,
                                grouped(count).c_str(), name_of(s.kv_format)));
  }
  JsonWriter json;
  json.begin_object().field("perplexity", perplexity).field("tokens", count);
  json.field("kv_format", name_of(s.kv_format)).end_object();
  return print_output(json.take());
}

}  // namespace headrace::cli
