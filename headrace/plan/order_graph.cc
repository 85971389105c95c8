#include "headrace/plan/order_graph.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace headrace::plan {

OrderGraph::OrderGraph(const Graph& graph)
    : g(graph), n(graph.ops.size()), after(n), needs(n, 0), touches(n) {
  std::vector<int32_t> life(graph.tensors.size(), -1);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.role == Role::kActivation || tensor.role == Role::kOutput ||
        tensor.role == Role::kGathered) {
      life[t] = static_cast<int32_t>(lives.size());
      lives.push_back({device_bytes(tensor), 0, tensor.role == Role::kOutput});
    } else {
      always += device_bytes(tensor);
    }
  }
  users.resize(lives.size());
  // Program order says who reads which version: later writers wait for all who used the one before.
  std::vector<int32_t> writer(graph.tensors.size(), -1);
  std::vector<std::vector<int32_t>> readers(graph.tensors.size());
  const auto edge = [&](int32_t from, int32_t to) {
    if (from < 0 || from == to) return;
    auto& list = after[static_cast<size_t>(from)];
    if (!list.empty() && list.back() == to) return;
    list.push_back(to);
    ++needs[static_cast<size_t>(to)];
  };
  for (size_t o = 0; o < n; ++o) {
    const int32_t id = static_cast<int32_t>(o);
    const Op& op = graph.ops[o];
    for (TensorId t : op.inputs) {
      if (!t.valid()) continue;
      edge(writer[t.index()], id);
      if (graph.at(t).role != Role::kConstant) readers[t.index()].push_back(id);
    }
    for (const auto* list : {&op.outputs, &op.updates}) {
      for (TensorId t : *list) {
        for (int32_t r : readers[t.index()]) edge(r, id);
        edge(writer[t.index()], id);
        writer[t.index()] = id;
        readers[t.index()].clear();
      }
    }
    for (const auto* list : {&op.inputs, &op.outputs, &op.updates}) {
      for (TensorId t : *list) {
        const int32_t l = t.valid() ? life[t.index()] : -1;
        if (l < 0) continue;
        auto& mine = touches[o];
        if (std::find(mine.begin(), mine.end(), l) != mine.end()) continue;
        mine.push_back(l);
        users[static_cast<size_t>(l)].push_back(id);
      }
    }
  }
}

std::vector<Bytes> held_by_order(const OrderGraph& g, const std::vector<int32_t>& order) {
  std::vector<size_t> left(g.lives.size(), 0);
  std::vector<Bytes> held;
  held.reserve(order.size());
  Bytes now = g.always;
  for (int32_t o : order) {
    const auto& touches = g.touches[static_cast<size_t>(o)];
    for (int32_t l : touches) {
      const size_t i = static_cast<size_t>(l);
      if (left[i]++ == 0) now += g.lives[i].bytes;
    }
    const Bytes workspace = g.g.ops[static_cast<size_t>(o)].workspace;
    held.push_back(now + (workspace > 0 ? round_up(workspace, kLine) : 0));
    for (int32_t l : touches) {
      const size_t i = static_cast<size_t>(l);
      if (left[i] == g.users[i].size() && !g.lives[i].stays) now -= g.lives[i].bytes;
    }
  }
  return held;
}

bool valid_order(const OrderGraph& g, const std::vector<int32_t>& order) {
  std::vector<int32_t> at(g.n, -1);
  for (size_t k = 0; k < order.size(); ++k) {
    at[static_cast<size_t>(order[k])] = static_cast<int32_t>(k);
  }
  for (size_t o = 0; o < g.n; ++o) {
    for (int32_t to : g.after[o]) {
      if (at[o] < 0 || at[o] >= at[static_cast<size_t>(to)]) return false;
    }
  }
  return order.size() == g.n;
}

namespace {

// One window [begin, begin + w) of an order.
class Window {
 public:
  Window(const OrderGraph& g, std::vector<int32_t>& order, const std::vector<int32_t>& position,
         size_t begin, size_t w)
      : g_(g), order_(order), position_(position), begin_(begin), w_(w),
        need_(w, 0), extra_(w, 0), live_(size_t{1} << w, 0) {}

  // True when the order changed for the better.
  bool improve(Bytes base) {
    tabulate();
    const size_t all = (size_t{1} << w_) - 1;
    std::vector<Bytes> best(all + 1, -1);
    std::vector<int8_t> last(all + 1, -1);
    best[0] = 0;
    for (size_t s = 0; s < all; ++s) {
      if (best[s] < 0) continue;
      for (size_t o = 0; o < w_; ++o) {
        const size_t bit = size_t{1} << o;
        if ((s & bit) != 0 || (need_[o] & ~s) != 0) continue;
        const Bytes peak = std::max(best[s], base + live_[s] + extra_of(o, s));
        Bytes& slot = best[s | bit];
        if (slot >= 0 && slot <= peak) continue;
        slot = peak;
        last[s | bit] = static_cast<int8_t>(o);
      }
    }
    const Bytes now = current_peak(base);
    if (best[all] >= now) return false;
    std::vector<int32_t> found(w_);
    for (size_t s = all, i = w_; s != 0;) {
      const size_t o = static_cast<size_t>(last[s]);
      found[--i] = order_[begin_ + o];
      s &= ~(size_t{1} << o);
    }
    std::copy(found.begin(), found.end(), order_.begin() + static_cast<std::ptrdiff_t>(begin_));
    return true;
  }

 private:
  struct Local {
    Bytes bytes = 0;
    size_t users = 0;     // bits of the window's ops that touch it
    bool before = false;  // alive when the window begins
    bool after = false;   // alive when it ends
  };

  // What each op needs, and the bytes alive after each subset, relative to those before the window
  // that nobody in it touches.
  void tabulate() {
    std::vector<int32_t> seen;
    for (size_t i = 0; i < w_; ++i) {
      const size_t o = static_cast<size_t>(order_[begin_ + i]);
      for (int32_t to : g_.after[o]) {
        const size_t at = static_cast<size_t>(position_[static_cast<size_t>(to)]);
        if (at >= begin_ && at < begin_ + w_) need_[at - begin_] |= size_t{1} << i;
      }
      const Bytes workspace = g_.g.ops[o].workspace;
      extra_[i] = workspace > 0 ? round_up(workspace, kLine) : 0;
      seen.insert(seen.end(), g_.touches[o].begin(), g_.touches[o].end());
    }
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    // Tensors with the same users here are one to the subsets.
    std::map<std::tuple<size_t, bool, bool>, Bytes> merged;
    for (int32_t l : seen) {
      Local local;
      local.bytes = g_.lives[static_cast<size_t>(l)].bytes;
      local.after = g_.lives[static_cast<size_t>(l)].stays;
      for (int32_t user : g_.users[static_cast<size_t>(l)]) {
        if (local.before && local.after && g_.users[static_cast<size_t>(l)].size() > kWindow) {
          // Alive on both sides: which of them are here changes nothing.
          local.users = 0;
          break;
        }
        const size_t at = static_cast<size_t>(position_[static_cast<size_t>(user)]);
        if (at < begin_) local.before = true;
        if (at >= begin_ + w_) local.after = true;
        if (at >= begin_ && at < begin_ + w_) local.users |= size_t{1} << (at - begin_);
      }
      merged[{local.users, local.before, local.after}] += local.bytes;
    }
    for (const auto& [key, bytes] : merged) {
      locals_.push_back({bytes, std::get<0>(key), std::get<1>(key), std::get<2>(key)});
    }
    for (size_t s = 0; s < live_.size(); ++s) {
      for (const Local& l : locals_) {
        const bool begun = l.before || (s & l.users) != 0;
        const bool over = !l.after && (s & l.users) == l.users;
        if (begun && !over) live_[s] += l.bytes;
      }
    }
  }

  Bytes extra_of(size_t o, size_t s) const {
    Bytes bytes = extra_[o];
    for (const Local& l : locals_) {
      const bool touched = (l.users >> o & 1) != 0;
      if (touched && !l.before && (s & l.users) == 0) bytes += l.bytes;
    }
    return bytes;
  }

  Bytes current_peak(Bytes base) const {
    Bytes peak = 0;
    size_t s = 0;
    for (size_t o = 0; o < w_; ++o) {
      peak = std::max(peak, base + live_[s] + extra_of(o, s));
      s |= size_t{1} << o;
    }
    return peak;
  }

  const OrderGraph& g_;
  std::vector<int32_t>& order_;
  const std::vector<int32_t>& position_;
  const size_t begin_, w_;
  std::vector<size_t> need_;
  std::vector<Bytes> extra_;  // workspace
  std::vector<Bytes> live_;   // by subset that has run
  std::vector<Local> locals_;
};

}  // namespace

int64_t improve_windows(const OrderGraph& g, int windows, std::vector<int32_t>& order) {
  int64_t work = 0;
  const size_t w = std::min<size_t>(kWindow, g.n);
  if (w < 3) return 0;
  std::vector<int32_t> position(g.n);
  for (int i = 0; i < windows; ++i) {
    for (size_t k = 0; k < g.n; ++k) {
      position[static_cast<size_t>(order[k])] = static_cast<int32_t>(k);
    }
    const std::vector<Bytes> held = held_by_order(g, order);
    const auto highest = std::max_element(held.begin(), held.end());
    const size_t peak = static_cast<size_t>(highest - held.begin());
    bool better = false;
    // The peak in the middle, late, and early in the window.
    for (size_t shift : {w / 2, w - 1, size_t{1}}) {
      const size_t begin = std::min(peak >= shift ? peak - shift : 0, g.n - w);
      // Only differences matter inside the window: what it does not touch is the same for all.
      Window window(g, order, position, begin, w);
      work += int64_t{1} << w;
      better = window.improve(0);
      if (better) break;
    }
    if (!better) break;
  }
  return work;
}

}  // namespace headrace::plan
