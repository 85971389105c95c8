// What the readers of the workload formats share. Internal to the workload*.cc files.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/ir/rules.h"

namespace headrace::workload {

// Takes one object of a list (or of an object) at the top of a document: `section` is the key at
// the top, `key` the element's own key where the section is an object.
using ElementFn = std::function<Status(const std::string& section, const std::string& key,
                                       const nlohmann::json& element)>;

// Reads a document, gives each object of depth two to `take` and forgets it; the result is what is
// left: the document without them. kBadFile with the place when it is no JSON, or what `take` said.
Result<nlohmann::json> read_elements(std::string_view json, const ElementFn& take);

// The keys of the outermost object, in order, by a scan that parses nothing else.
std::vector<std::string_view> top_keys(std::string_view json);

// That ops are listed in an order in which they can run, every tensor is written once and sizes add
// up to less than 2^60 bytes. kBadFile with names; says so when the ops form a cycle.
Status check_order(const Graph& graph);

Result<Workload> parse_own(std::string_view json);    // workload.cc
Result<Workload> parse_trace(std::string_view json);  // workload_trace.cc

}  // namespace headrace::workload
