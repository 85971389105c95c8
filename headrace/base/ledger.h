// The budget ledger: one number, `--memory`, and everything drawn from it.
//
// Promises
//   1. Reserve before use: a reservation that would exceed the total fails and changes nothing.
//   2. items() lists every reservation in order; their sum and available() make up the total.
#pragma once

#include <string>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

class BudgetLedger {
 public:
  struct Item {
    std::string name;
    Bytes bytes = 0;
  };

  explicit BudgetLedger(Bytes total) : total_(total) {}

  // kDoesNotFit, with what is reserved already, when fewer than `bytes` are available.
  Status reserve(const std::string& name, Bytes bytes);

  Bytes total() const { return total_; }
  Bytes reserved() const;
  Bytes available() const { return total_ - reserved(); }
  const std::vector<Item>& items() const { return items_; }

 private:
  Bytes total_;
  std::vector<Item> items_;
};

}  // namespace headrace
