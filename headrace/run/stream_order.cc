#include "headrace/run/stream_order.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace headrace {
namespace {

// Who wrote each byte last, and who has read it since.
class LastUses {
 public:
  void touch(Bytes begin, Bytes end, int32_t step, bool write, std::vector<int32_t>& waits) {
    split(begin);
    split(end);
    auto at = nodes_.lower_bound(begin);
    for (Bytes from = begin; from < end;) {
      if (at == nodes_.end() || at->first > from) {
        const Bytes stop = at == nodes_.end() ? end : std::min(end, at->first);
        at = nodes_.emplace(from, Node{stop, -1, {}}).first;
      }
      Node& n = at->second;
      if (n.writer >= 0) waits.push_back(n.writer);
      if (write) {
        waits.insert(waits.end(), n.readers.begin(), n.readers.end());
      } else if (n.readers.empty() || n.readers.back() != step) {
        n.readers.push_back(step);
      }
      from = n.end;
      ++at;
    }
    if (!write) return;
    nodes_.erase(nodes_.lower_bound(begin), nodes_.lower_bound(end));
    nodes_.emplace(begin, Node{end, step, {}});
  }

 private:
  struct Node {
    Bytes end = 0;
    int32_t writer = -1;
    std::vector<int32_t> readers;
  };

  void split(Bytes at) {
    auto it = nodes_.upper_bound(at);
    if (it == nodes_.begin()) return;
    --it;
    if (it->first >= at || it->second.end <= at) return;
    Node tail = it->second;
    it->second.end = at;
    nodes_.emplace(at, std::move(tail));
  }

  std::map<Bytes, Node> nodes_;  // disjoint, by begin
};

}  // namespace

void add_stream_waits(PreparedProgram& p) {
  std::map<int32_t, LastUses> device;  // by stream
  std::map<std::tuple<int32_t, int32_t, int32_t>, LastUses> copies;  // by stream, tier, object
  // The second pass sees what the cycle before has left.
  const int passes = p.program.cyclic ? 2 : 1;
  std::vector<int32_t> waits;
  for (int pass = 1; pass <= passes; ++pass) {
    for (int32_t s = 0; s < p.program.exit().value; ++s) {
      const Instr& i = p.program.instrs[static_cast<size_t>(s)];
      if (!is_transfer(i.kind)) continue;
      TransferStep& t = p.transfers[static_cast<size_t>(p.index[static_cast<size_t>(s)])];
      const bool store = i.kind == InstrKind::kStore;
      waits.clear();
      // Addresses serve as offsets: all are of one arena.
      const auto near = static_cast<Bytes>(reinterpret_cast<uintptr_t>(t.near.data()));
      device[t.stream].touch(near, near + static_cast<Bytes>(t.near.size()), s, !store, waits);
      if (t.far.bytes > 0) {
        copies[{t.stream, i.tier.value, t.far.object}].touch(
            t.far.offset, t.far.offset + t.far.bytes, s, store, waits);
      }
      if (pass < passes) continue;
      for (int32_t w : waits) {
        if (w != s) t.waits.push_back(w);
      }
      std::sort(t.waits.begin(), t.waits.end());
      t.waits.erase(std::unique(t.waits.begin(), t.waits.end()), t.waits.end());
    }
  }
}

}  // namespace headrace
