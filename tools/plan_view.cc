#include "tools/plan_view.h"

#include <algorithm>
#include <filesystem>

#include "headrace/base/system_memory.h"
#include "headrace/model/tokenizer_stream.h"

namespace headrace::cli {
namespace {

std::string mib_option(Bytes bytes) {
  return text_of("--memory %lldMiB",
                 static_cast<long long>(round_up(bytes, kMiB) / kMiB));
}

Bytes reserved_for(const SessionPlan& plan) {
  const Bytes tables = page_tables_of(plan.options.memory_bytes);
  return round_up(budget_around(plan.ledger.reserved() - tables), kMiB);
}

BudgetOption option_of(const SessionPlan& plan, std::string label) {
  const PlanSummary s = summarize(plan.decode);
  BudgetOption o;
  o.budget_bytes = plan.options.memory_bytes;
  o.label = std::move(label);
  o.fits = true;
  o.resident_bytes = s.resident_bytes;
  o.streamed_bytes = s.streamed_bytes;
  o.predicted_ns = s.predicted_ns;
  return o;
}

int64_t asked_context(const SessionOptions& o) {
  return context_bucket(o.context > 0 ? o.context : o.prompt_tokens + o.new_tokens);
}

// The largest context of whole halvings that fits, 0 when none does.
int64_t context_that_fits(const Model& model, SessionOptions o) {
  const int64_t asked = asked_context(o);
  for (int64_t context = context_bucket(asked / 2); context < asked;
       context = context_bucket(context / 2)) {
    if (context <= o.prompt_tokens) break;
    o.context = context;
    const auto least = least_memory(model, o);
    if (least.ok() && *least <= o.memory_bytes) return context;
    if (context == context_bucket(1)) break;
  }
  return 0;
}

// least_memory, but never below what reading the model has taken.
Result<Bytes> least_memory_now(const Model& model, const SessionOptions& options) {
  HR_ASSIGN(const Bytes least, least_memory(model, options));
  // Peaks of the same command differ by some pages.
  return std::max(least, process_memory().peak_rss + kMiB / 2);
}

std::string option_line(const std::string& option, const std::string& meaning) {
  return "  " + pad_right(option, 22) + meaning + "\n";
}

}  // namespace

std::string model_name(const Model& model, const std::string& path) {
  const auto name = model.file.string_or("general.name", "");
  if (name.ok() && !name->empty()) return valid_utf8(*name);
  std::filesystem::path p(path);
  if (p.filename().empty()) p = p.parent_path();
  return valid_utf8(p.filename().string());
}

std::string main_type(const ModelSummary& summary) {
  const auto most = std::max_element(
      summary.by_type.begin(), summary.by_type.end(),
      [](const WeightTotal& a, const WeightTotal& b) { return a.bytes < b.bytes; });
  return most == summary.by_type.end() ? "" : most->name;
}

ProgramFigures figures_of(const Program& program, int64_t rows, int64_t position) {
  ProgramFigures f;
  if (program.graph == nullptr) return f;
  const PlanSummary s = summarize(program, position);
  f.rows = rows;
  f.model_bytes = s.model_bytes;
  f.resident_bytes = s.resident_bytes;
  f.streamed_bytes = s.streamed_bytes;
  f.gathered_bytes = s.gathered_bytes;
  f.ring_bytes = s.ring_bytes;
  f.kv_bytes = s.state_bytes;
  f.kv_disk_bytes = s.kv_copy_bytes;
  f.kv_loaded_bytes = s.kv_loaded_bytes;
  f.workspace_bytes = s.workspace_bytes;
  f.resident_tensors = s.resident_tensors;
  f.streamed_tensors = s.streamed_tensors;
  f.predicted_ns = s.predicted_ns;
  f.predicted_stall_ns = s.predicted_stall_ns;
  return f;
}

PlanReport plan_report(const Model& model, const std::string& path,
                       const SessionPlan& plan, const Setup& setup) {
  PlanReport r;
  const ModelSummary weights = summarize(model.file);
  r.model = model_name(model, path);
  r.architecture = model.config.architecture;
  r.main_type = main_type(weights);
  r.parameters = weights.total.parameters;
  r.weight_bytes = weights.total.bytes;
  r.budget_bytes = plan.options.memory_bytes;
  r.budget_source = setup.budget_source;
  r.arena_bytes = plan.arena_bytes;
  for (const BudgetLedger::Item& i : plan.ledger.items())
    r.reserved.push_back({i.name, i.bytes});
  r.context = plan.context;
  r.trained_context = model.config.trained_context;
  r.prompt_tokens = plan.options.prompt_tokens;
  r.chunk = plan.chunk;
  r.threads = plan.options.threads;
  r.kv_format = name_of(plan.options.kv_format);
  r.kv_folder = plan.kv_streamed ? plan.options.kv_folder : "";
  r.position = plan.decode_cost.positions;
  r.decode = figures_of(plan.decode, 1, r.position);
  r.prefill = figures_of(plan.prefill, plan.chunk, r.position);
  r.machine.name = plan.options.machine.name;
  r.machine.source = setup.machine_source;
  r.machine.measured = setup.machine_measured;
  r.machine.threads = plan.options.machine.threads;
  r.machine.link_bytes_per_s = plan.options.machine.tiers[1].load_bytes_per_s;
  r.machine.memory_bytes_per_s = plan.options.machine.memory_bytes_per_s;
  return r;
}

Status check_peak(const Model& model, const SessionOptions& options) {
  const Bytes peak = process_memory().peak_rss;
  if (peak <= options.memory_bytes) return {};
  HR_ASSIGN(const Bytes least, least_memory_now(model, options));
  return error(Code::kDoesNotFit,
               "reading this model and planning took %s (%lld bytes) at the peak, more "
               "than the budget of %s\nthe least budget is %s\nwhat would fit:\n%s",
               human_bytes(peak).c_str(), static_cast<long long>(peak),
               human_bytes(options.memory_bytes).c_str(), human_bytes(least).c_str(),
               option_line(mib_option(least), "all else unchanged").c_str());
}

Status with_advice(const Status& refusal, const Model& model,
                   const SessionOptions& options) {
  const auto least = least_memory_now(model, options);
  if (!least.ok()) return refusal;
  std::string out = refusal.message();
  if (*least > options.memory_bytes) {
    out = text_of(
        "%s do not hold this model with a context of %s\n%s (%lld bytes) are missing; "
        "the "
        "least budget is %s",
        human_bytes(options.memory_bytes).c_str(),
        grouped(asked_context(options)).c_str(),
        human_bytes(*least - options.memory_bytes).c_str(),
        static_cast<long long>(*least - options.memory_bytes),
        human_bytes(*least).c_str());
  }
  out += "\nwhat would fit:\n" + option_line(mib_option(*least), "all else unchanged");
  if (const int64_t context = context_that_fits(model, options); context > 0) {
    out += option_line(text_of("--context %lld", static_cast<long long>(context)),
                       "in the same memory");
  } else {
    SessionOptions small = options;
    small.context = context_bucket(options.prompt_tokens + 1);
    const auto smallest = least_memory_now(model, small);
    if (smallest.ok() && round_up(*smallest, kMiB) < round_up(*least, kMiB)) {
      out += option_line(
          mib_option(*smallest),
          text_of("with --context %lld", static_cast<long long>(small.context)));
    }
  }
  if (options.chunk > 1) {
    SessionOptions unchunked = options;
    unchunked.chunk = 0;
    const auto smaller = least_memory_now(model, unchunked);
    if (smaller.ok() && round_up(*smaller, kMiB) < round_up(*least, kMiB)) {
      out += option_line(mib_option(*smaller), "without --chunk");
    }
  }
  return Status(refusal.code(), out);
}

std::vector<BudgetOption> other_budgets(const Model& model, const SessionPlan& plan) {
  std::vector<BudgetOption> out;
  BudgetOption chosen = option_of(plan, "this one");
  chosen.is_chosen = true;
  out.push_back(chosen);
  const Bytes weights = weight_bytes(model.file);
  SessionOptions o = plan.options;
  for (const int percent : {25, 50, 75, 100}) {
    o.memory_bytes = weights * percent / 100;
    const std::string label = text_of("%d %% of the model", percent);
    const auto other = plan_session(model, o);
    out.push_back(other.ok() ? option_of(*other, label)
                             : BudgetOption{o.memory_bytes, label});
  }
  o.memory_bytes = 4 * weights + 16 * kGiB;
  if (const auto all = plan_session(model, o); all.ok()) {
    o.memory_bytes = reserved_for(*all);
    const auto fitted = plan_session(model, o);
    if (fitted.ok()) out.push_back(option_of(*fitted, "nothing streamed"));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const BudgetOption& a, const BudgetOption& b) {
                     return a.budget_bytes < b.budget_bytes;
                   });
  return out;
}

}  // namespace headrace::cli
