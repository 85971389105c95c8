#include "headrace/model/step_graph.h"
namespace headrace {
Result<StepConfig> parse_step_config(std::string_view) { return error(Code::kUnsupported, "not yet"); }
Result<Workload> build_step(const StepConfig&) { return error(Code::kUnsupported, "not yet"); }
}
