#include "headrace/ir/graph.h"

#include <array>

namespace headrace {
namespace {

constexpr std::array<const char*, 6> kRoles = {"weight",   "constant", "activation",
                                               "gathered", "state",    "output"};
constexpr std::array<const char*, kOpKindCount> kOps = {
    "embed",     "rope_table", "rms_norm",    "quantize",   "matmul", "rope_kv",
    "attention", "gated_act",  "add",         "select_rows", "softcap"};
constexpr std::array<const char*, kAttrCount> kAttrs = {
    "scale",    "mscale",          "eps",            "add_one",  "col_begin",
    "heads",    "kv_heads",        "head_dim",       "rope_half_split",
    "segment_tokens", "segments",  "window",         "softcap",  "act"};

}  // namespace

const char* name_of(Role role) { return kRoles[static_cast<size_t>(role)]; }
const char* name_of(OpKind kind) { return kOps[static_cast<size_t>(kind)]; }
const char* name_of(Attr attr) { return kAttrs[static_cast<size_t>(attr)]; }

}  // namespace headrace
