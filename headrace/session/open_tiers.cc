#include "headrace/session/open_tiers.h"

#include <algorithm>
#include <utility>

#include "headrace/session/plan_items.h"

namespace headrace {
namespace {

constexpr int kWeightTickets = 1024;

Status check_buffers(const Tier& tier, const char* what) {
  const Bytes held = tier.describe().memory_bytes;
  if (held <= kTransferMemory) return {};
  return error(Code::kDoesNotFit, "%s takes %lld bytes of buffers for %s, %lld are reserved",
               tier.describe().method.c_str(), static_cast<long long>(held), what,
               static_cast<long long>(kTransferMemory));
}

}  // namespace

Result<std::unique_ptr<FileTier>> open_weights(const Model& model, Arena* arena) {
  FileTierOptions options;
  options.max_tickets = kWeightTickets;
  // Registering would fault in and pin the whole arena before the first load, and cost kernel
  // memory for every page of it: 0.4 s of the time to the first token of a 1.1 GB model, for 3 ms
  // of CPU a gigabyte read (decision 0003).
  options.register_buffers = false;
  HR_ASSIGN(std::unique_ptr<FileTier> tier, open_file_tier(model.file.paths, arena, options));
  HR_TRY(check_buffers(*tier, "weights"));
  return tier;
}

Result<std::unique_ptr<Tier>> open_kv_file(const std::string& folder, Bytes bytes, int tickets,
                                           Arena* arena) {
  FileTierOptions options;
  options.access = FileAccess::kScratch;
  options.scratch_bytes = std::max(kPage, bytes);
  options.max_tickets = tickets;
  options.register_buffers = false;
  auto file = open_file_tier({folder + "/headrace-kv"}, arena, options);
  if (!file.ok()) return file.status().within("KV of " + human_bytes(bytes));
  HR_TRY(check_buffers(**file, "KV"));
  return std::unique_ptr<Tier>(std::move(file).value());
}

}  // namespace headrace
