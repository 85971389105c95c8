// Short steps: a search over orders, each judged by the placement that construction alone finds
// for it.
#include <algorithm>

#include "headrace/plan/order_graph.h"
#include "headrace/plan/placement.h"

namespace headrace::plan {
namespace {

// Steps up to this long are searched; a placement of one takes well under a millisecond.
constexpr size_t kMostSearched = 32;
constexpr int64_t kMostPlacements = 400;

class Search {
 public:
  Search(const StepRequest& request, const OrderGraph& graph) : request_(request), g_(graph) {}

  // Hill climbing from `order`: one op moves to another place, the first that helps is taken.
  Result<std::vector<int32_t>> run(std::vector<int32_t> order) {
    HR_ASSIGN(Nanos best, judge(order));
    bool better = true;
    while (better && spent_ < kMostPlacements) {
      better = false;
      for (size_t from = 0; from < order.size() && spent_ < kMostPlacements; ++from) {
        for (const size_t to : places(order, from)) {
          std::vector<int32_t> tried = order;
          const int32_t op = tried[from];
          tried.erase(tried.begin() + static_cast<std::ptrdiff_t>(from));
          tried.insert(tried.begin() + static_cast<std::ptrdiff_t>(to), op);
          HR_ASSIGN(const Nanos time, judge(tried));
          if (time >= best) continue;
          best = time;
          order = std::move(tried);
          better = true;
          break;
        }
      }
    }
    best_ = best;
    return order;
  }

  Nanos best() const { return best_; }
  int64_t spent() const { return spent_; }
  void reset() { spent_ = 0; }

  // The step's time by construction alone; what does not fit comes last, by how much is missing.
  Result<Nanos> judge(const std::vector<int32_t>& order) {
    std::vector<OpId> ids;
    for (int32_t o : order) ids.push_back(OpId(o));
    HR_ASSIGN(const Problem p, make_problem(request_, ids));
    PlaceOptions options;
    options.recompute = request_.recompute;
    options.improve = false;
    HR_ASSIGN(const Placement placement, place(p, options));
    ++spent_;
    return placement.fits ? placement.predicted_ns
                          : kUnfit + static_cast<Nanos>(placement.missing_bytes / kLine);
  }

 private:
  static constexpr Nanos kUnfit = Nanos{1} << 60;

  // Where the op at `from` may go: between the last that it needs and the first that needs it.
  std::vector<size_t> places(const std::vector<int32_t>& order, size_t from) const {
    std::vector<size_t> found;
    const auto needs = [&](int32_t a, int32_t b) {
      const auto& after = g_.after[static_cast<size_t>(a)];
      return std::find(after.begin(), after.end(), b) != after.end();
    };
    for (size_t to = from; to-- > 0 && !needs(order[to], order[from]);) found.push_back(to);
    for (size_t to = from + 1; to < order.size() && !needs(order[from], order[to]); ++to) {
      found.push_back(to);
    }
    return found;
  }

  const StepRequest& request_;
  const OrderGraph& g_;
  Nanos best_ = 0;
  int64_t spent_ = 0;
};

}  // namespace

Status search_orders(const StepRequest& request, std::vector<OrderChoice>& orders) {
  const Graph& graph = request.workload->graph;
  if (!request.reorder || graph.ops.size() < 3 || graph.ops.size() > kMostSearched) return {};
  const OrderGraph g(graph);
  std::vector<int32_t> own;
  for (OpId o : orders[0].order) own.push_back(o.value);
  if (orders[0].peak_bytes <= request.budget) return {};
  Search search(request, g);
  OrderChoice found;
  found.name = "searched order";
  Nanos best = 0;
  for (const OrderChoice& start : orders) {
    std::vector<int32_t> order;
    for (OpId o : start.order) order.push_back(o.value);
    search.reset();
    HR_ASSIGN(const std::vector<int32_t> result, search.run(std::move(order)));
    found.work += search.spent();
    if (!found.order.empty() && search.best() >= best) continue;
    best = search.best();
    found.order.clear();
    for (int32_t o : result) found.order.push_back(OpId(o));
  }
  found.peak_bytes = swept_peak(graph, found.order);
  const bool known = std::any_of(orders.begin(), orders.end(), [&](const OrderChoice& c) {
    return c.order == found.order;
  });
  if (!known) orders.push_back(std::move(found));
  return {};
}

}  // namespace headrace::plan
