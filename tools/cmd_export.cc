// headrace export: a training run's newest checkpoint as a model.
#include "headrace/train/export.h"
#include "tools/commands.h"
#include "tools/console.h"

namespace headrace::cli {
namespace {

struct ExportCliOptions {
  std::string run;
  std::string out;
  std::string dtype = "f32";
  bool adapter = false;
};

Status export_model(const ExportCliOptions& o) {
  const Console console = look_at_console();
  std::atomic<bool>* stop = stop_flag();
  ProgressLine progress(console);
  ExportOptions options;
  options.run = o.run;
  options.out = o.out;
  options.adapter = o.adapter;
  HR_ASSIGN(options.dtype, dtype_from_name(o.dtype));
  options.progress = [&](Bytes done, Bytes total) {
    progress.update("export", done, total, "B/s");
    return !stop->load();
  };
  progress.restart();
  HR_ASSIGN(const ExportResult result, export_run(options));
  progress.clear();
  print_error(text_of(
      "%s: step %lld, %lld parameters, %s\n", o.out.c_str(), static_cast<long long>(result.step),
      static_cast<long long>(result.parameters), human_bytes(result.bytes).c_str()));
  return {};
}

}  // namespace

void add_export(CLI::App& app, Action* action) {
  auto o = std::make_shared<ExportCliOptions>();
  CLI::App* verb = app.add_subcommand("export", "Write a training run as a model");
  verb->add_option("run", o->run, "The run's folder (\"out\" of its config)")->required();
  verb->add_option("-o,--output", o->out,
                   "NAME.gguf, NAME.safetensors, or a folder (config, weights, tokenizer)")
      ->required();
  verb->add_option("--type", o->dtype, "Of the parameters")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  verb->add_flag("--adapter", o->adapter, "Only LoRA's products, as PEFT reads them");
  verb->callback([o, action] { *action = [o] { return export_model(*o); }; });
}

}  // namespace headrace::cli
