#include "headrace/base/ledger.h"

namespace headrace {

Status BudgetLedger::reserve(const std::string& name, Bytes bytes) {
  HR_CHECK(bytes >= 0, "a reservation is not negative");
  if (bytes > available()) {
    std::string held;
    for (const Item& i : items_) {
      held += (held.empty() ? "" : ", ") + i.name + " " + human_bytes(i.bytes);
    }
    return error(Code::kDoesNotFit, "%s needs %s, but of the budget of %s only %s are left (%s)",
                 name.c_str(), human_bytes(bytes).c_str(), human_bytes(total_).c_str(),
                 human_bytes(available()).c_str(), held.c_str());
  }
  items_.push_back({name, bytes});
  return {};
}

Bytes BudgetLedger::reserved() const {
  Bytes sum = 0;
  for (const Item& i : items_) sum += i.bytes;
  return sum;
}

}  // namespace headrace
