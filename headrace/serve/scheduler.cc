#include "headrace/serve/scheduler.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "headrace/base/status.h"

namespace headrace {
namespace {

using Views = std::vector<ChoiceView>;

std::tuple<int, int64_t, int> rank(const ChoiceView& c) {
  return {-c.priority, c.arrival, c.number};
}

void sort_by_rank(Views* views) { std::sort(views->begin(), views->end(), goes_before); }

void remove(Views* views, int32_t id) {
  std::erase_if(*views, [id](const ChoiceView& c) { return c.id == id; });
}

// Blocks that may be on disk once `victims` of `running` are there beside what is preempted: also
// those of running choices that were, as a copy stays until its block is written or given back.
int64_t on_disk(const Views& running, std::span<const ChoiceView> queued, const Views& victims) {
  int64_t sum = 0;
  for (const ChoiceView& c : running) sum += c.on_disk ? c.worst : 0;
  for (const ChoiceView& c : queued) sum += c.on_disk ? c.worst : 0;
  for (const ChoiceView& c : victims) sum += c.on_disk ? 0 : c.worst;
  return sum;
}

bool fits(const ScheduleLimits& limits, Views running, const ChoiceView& next,
          const Views& victims) {
  for (const ChoiceView& v : victims) remove(&running, v.id);
  running.push_back(next);
  return static_cast<int64_t>(running.size()) <= limits.places &&
         promised_blocks(running) <= limits.blocks;
}

// The running choices that have to go for `next`, fewest needed; false: it cannot be.
bool choose_victims(const ScheduleLimits& limits, const Views& running, const ChoiceView& next,
                    Views* victims) {
  Views lower;
  for (const ChoiceView& c : running)
    if (c.priority < next.priority) lower.push_back(c);
  sort_by_rank(&lower);
  while (!fits(limits, running, next, *victims)) {
    if (lower.empty()) return false;
    victims->push_back(lower.back());
    lower.pop_back();
  }
  // An early one may have been too small to help, the last one alone enough.
  for (const ChoiceView& v : Views(*victims)) {
    Views fewer = *victims;
    remove(&fewer, v.id);
    if (fits(limits, running, next, fewer)) *victims = fewer;
  }
  return true;
}

}  // namespace

bool goes_before(const ChoiceView& a, const ChoiceView& b) { return rank(a) < rank(b); }

int64_t promised_blocks(std::span<const ChoiceView> running) {
  int64_t sum = 0;
  std::map<int32_t, int64_t> shared;  // by job
  for (const ChoiceView& c : running) {
    sum += c.worst - c.shared;
    int64_t& most = shared[c.job];
    most = std::max(most, c.shared);
  }
  for (const auto& [job, blocks] : shared) sum += blocks;
  return sum;
}

Placement place_choices(const ScheduleLimits& limits, std::span<const ChoiceView> running,
                        std::span<const ChoiceView> queued) {
  Placement out;
  Views now(running.begin(), running.end());
  Views next(queued.begin(), queued.end());
  sort_by_rank(&next);
  std::vector<ChoiceView> preempted(queued.begin(), queued.end());
  int64_t sequences = std::count_if(queued.begin(), queued.end(), [&](const ChoiceView& c) {
    return c.on_disk;
  });
  for (const ChoiceView& c : next) {
    Views victims;
    if (!choose_victims(limits, now, c, &victims)) break;
    // What begins in this round is not there to be preempted: it went before `c`.
    const int64_t count = sequences + static_cast<int64_t>(victims.size());
    if (!victims.empty() && (count > limits.disk_sequences ||
                             on_disk(now, preempted, victims) > limits.disk_blocks))
      break;
    for (ChoiceView v : victims) {
      out.preempt.push_back(v.id);
      remove(&now, v.id);
      v.on_disk = true;
      preempted.push_back(v);
    }
    sequences = count - (c.on_disk ? 1 : 0);
    std::erase_if(preempted, [&](const ChoiceView& p) { return p.id == c.id; });
    out.start.push_back(c.id);
    now.push_back(c);
  }
  return out;
}

std::vector<Share> share_step(const ScheduleLimits& limits, std::span<const ChoiceView> running,
                              int64_t drafted, const StepTimes& times) {
  Views order(running.begin(), running.end());
  sort_by_rank(&order);
  std::vector<Share> out;
  for (const ChoiceView& c : order)
    if (c.unread == 1) out.push_back({c.id, 1});
  const int64_t base = static_cast<int64_t>(out.size()) + drafted;
  HR_CHECK(base <= limits.step_rows, "rows that decode fit in a step");
  int64_t room = limits.step_rows - base;
  if (base > 0 && room > 0) {
    const double most = limits.stretch * static_cast<double>(times(base));
    // The most rows beside which a step is still short enough, by bisection: at least one.
    int64_t low = 1, high = room;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (static_cast<double>(times(base + middle)) <= most) low = middle;
      else high = middle - 1;
    }
    room = low;
  }
  std::erase_if(order, [](const ChoiceView& c) { return c.unread == 1; });
  if (order.empty()) return out;
  // The shortest of the first one's equals; of those as short, the first.
  size_t shortest = 0;
  for (size_t i = 1; i < order.size() && order[i].priority == order[0].priority; ++i)
    if (order[i].unread < order[shortest].unread) shortest = i;
  std::vector<int64_t> rows(order.size());
  if (shortest > 0) room -= rows[shortest] = std::min(order[shortest].unread, room / 2);
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t more = std::min(order[i].unread - rows[i], room);
    rows[i] += more;
    room -= more;
    if (rows[i] > 0) out.push_back({order[i].id, rows[i]});
  }
  return out;
}

int64_t expected_left(int64_t said, int64_t most, double typical) {
  const int64_t left = most - said;
  if (typical < 0) return left;
  const double more = static_cast<double>(said) < typical ? typical - static_cast<double>(said)
                                                          : typical / 2;
  return std::clamp<int64_t>(static_cast<int64_t>(more), std::min<int64_t>(1, left), left);
}

}  // namespace headrace
