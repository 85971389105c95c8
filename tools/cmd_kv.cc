// headrace kv: what a prefix store's folder holds, whether it is sound, and making it smaller.
#include <time.h>

#include <algorithm>
#include <filesystem>

#include "headrace/base/safe_file.h"
#include "headrace/base/system_memory.h"
#include "headrace/kv/prefix_index.h"
#include "headrace/kv/prefix_list.h"
#include "headrace/report/json_writer.h"
#include "headrace/report/text_style.h"
#include "tools/commands.h"
#include "tools/console.h"

namespace headrace::cli {
namespace {

struct KvOptions {
  std::string folder;
  bool verify = false;
  bool remove_bad = false;
  std::string prune;  // a size; empty: not
  std::vector<std::string> forget;  // names
  bool json = false;
};

// What was done before the folder was listed.
struct Done {
  int64_t forgotten = 0;  // names
  int64_t removed = 0;    // damaged files and leftovers
  PrefixRoom pruned;
};

std::string hex(uint64_t n) { return text_of("%016llx", static_cast<unsigned long long>(n)); }

// Seconds per GiB read back.
double value_of(double seconds, Bytes bytes) {
  return bytes > 0 ? seconds * static_cast<double>(kGiB) / static_cast<double>(bytes) : 0;
}

std::string age(int64_t then) {
  const int64_t seconds = std::max<int64_t>(0, static_cast<int64_t>(::time(nullptr)) - then);
  if (seconds == 0) return "now";
  if (seconds >= 2 * 86400) return grouped(seconds / 86400) + " days";
  return human_time(seconds * 1000000000);
}

std::string nanos(double seconds) {
  return human_time(static_cast<Nanos>(std::min(seconds, 1e9) * 1e9));
}

std::string model_of(const ListedEntry& e) {
  return e.label.empty() ? hex(e.model) : terminal_text(e.label);
}

std::string chain_rows(const PrefixListing& list, const TextStyle& style) {
  std::string out = "\n  " +
                    dim(pad_right("prompts", 34) + pad_left("tokens", 10) + pad_left("bytes", 12) +
                            pad_left("age", 14) + pad_left("used", 14) + "  " +
                            pad_right("format", 8) + pad_left("saves", 12) +
                            pad_left("s per GiB", 11) + "  model",
                        style) +
                    "\n";
  for (const ListedChain& c : list.chains) {
    const ListedEntry& e = list.entries[c.last];
    out += "  " + pad_right(to_text(e.hash), 34) + pad_left(grouped(c.tokens), 10) +
           pad_left(human_bytes(c.bytes), 12) + pad_left(age(e.created), 14) +
           pad_left(age(e.used), 14) + "  " + pad_right(name_of(e.format), 8) +
           pad_left(nanos(c.recompute_seconds), 12) +
           pad_left(human_number(value_of(c.recompute_seconds, c.bytes)), 11) + "  " +
           model_of(e) + "\n";
  }
  return out;
}

std::string name_rows(const PrefixListing& list, const TextStyle& style) {
  std::string out = "\n  " +
                    dim(pad_right("names", 34) + pad_left("tokens", 10) + pad_left("kept", 12) +
                            pad_left("age", 14) + "  " + pad_right("format", 8) + "model",
                        style) +
                    "\n";
  for (const ListedName& n : list.names) {
    out += "  " + pad_right(n.prefix.name, 34) + pad_left(grouped(n.tokens), 10) +
           pad_left(grouped(n.kept_tokens), 12) + pad_left(age(n.prefix.saved), 14) + "  " +
           pad_right(name_of(n.prefix.format), 8) + hex(n.prefix.model) + "\n";
  }
  return out;
}

std::string file_rows(const char* heading, const std::vector<std::string>& files,
                      const TextStyle& style) {
  if (files.empty()) return "";
  std::string out = "\n  " + dim(heading, style) + "\n";
  for (const std::string& file : files) out += "  " + terminal_text(file) + "\n";
  return out;
}

std::string as_text(const KvOptions& o, const PrefixListing& list, const Done& done,
                    const TextStyle& style) {
  const auto lost = std::count_if(list.entries.begin(), list.entries.end(),
                                  [](const ListedEntry& e) { return !e.reachable; });
  std::string out = bold(terminal_text(o.folder), style) + "\n" +
                    grouped(static_cast<int64_t>(list.entries.size())) + " entries of " +
                    grouped(static_cast<int64_t>(list.chains.size())) + " prompts, " +
                    human_bytes(list.entry_bytes);
  if (o.verify) out += ", every byte read";
  out += "\n";
  if (lost > 0) out += grouped(lost) + " entries continue one that is not there\n";
  if (done.forgotten > 0) out += grouped(done.forgotten) + " names forgotten\n";
  if (done.removed > 0) out += grouped(done.removed) + " files removed\n";
  if (done.pruned.evicted > 0) {
    out += grouped(done.pruned.evicted) + " entries pruned, " +
           human_bytes(done.pruned.evicted_bytes) + "\n";
  }
  if (!list.chains.empty()) out += chain_rows(list, style);
  if (!list.names.empty()) out += name_rows(list, style);
  std::vector<std::string> bad;
  for (const BadPrefixFile& b : list.bad) bad.push_back(b.file + ": " + b.why);
  out += file_rows("cannot be used", bad, style);
  out += file_rows("being written, or left by a killed process", list.temporary, style);
  out += file_rows("of no prefix store", list.foreign, style);
  return out;
}

void write_entries(const PrefixListing& list, JsonWriter& json) {
  json.key("entries").begin_array();
  for (const ListedEntry& e : list.entries) {
    json.begin_object().field("hash", to_text(e.hash)).field("parent", to_text(e.parent));
    json.field("model", hex(e.model)).field("label", e.label).field("format", name_of(e.format));
    json.field("first", e.first).field("tokens", e.tokens).field("bytes", e.bytes);
    json.field("recompute_seconds", e.recompute_seconds).field("priority", e.priority);
    json.field("seconds_per_gib", value_of(e.recompute_seconds, e.bytes));
    json.field("created", e.created).field("used", e.used).field("reachable", e.reachable);
    json.end_object();
  }
  json.end_array();
}

void write_names(const PrefixListing& list, JsonWriter& json) {
  json.key("names").begin_array();
  for (const ListedName& n : list.names) {
    json.begin_object().field("name", n.prefix.name).field("hash", to_text(n.prefix.hash));
    json.field("model", hex(n.prefix.model)).field("format", name_of(n.prefix.format));
    json.field("tokens", n.tokens).field("kept_tokens", n.kept_tokens);
    json.field("saved", n.prefix.saved).end_object();
  }
  json.end_array();
}

void write_files(const char* key, const std::vector<std::string>& files, JsonWriter& json) {
  json.key(key).begin_array();
  for (const std::string& file : files) json.value(file);
  json.end_array();
}

std::string as_json(const KvOptions& o, const PrefixListing& list, const Done& done) {
  JsonWriter json;
  json.begin_object().field("folder", o.folder).field("verified", o.verify);
  json.field("bytes", list.entry_bytes).field("removed", done.removed);
  json.field("forgotten", done.forgotten);
  json.field("pruned", done.pruned.evicted).field("pruned_bytes", done.pruned.evicted_bytes);
  json.key("prompts").begin_array();
  for (const ListedChain& c : list.chains) {
    json.begin_object().field("hash", to_text(list.entries[c.last].hash));
    json.field("tokens", c.tokens).field("bytes", c.bytes);
    json.field("recompute_seconds", c.recompute_seconds).end_object();
  }
  json.end_array();
  write_entries(list, json);
  write_names(list, json);
  json.key("bad").begin_array();
  for (const BadPrefixFile& b : list.bad) {
    json.begin_object().field("file", b.file).field("why", b.why).field("bytes", b.bytes);
    json.end_object();
  }
  json.end_array();
  write_files("temporary", list.temporary, json);
  write_files("foreign", list.foreign, json);
  json.end_object();
  return json.take();
}

Status remove_bad(const KvOptions& o, const PrefixListing& list, Done* done) {
  for (const BadPrefixFile& b : list.bad) {
    HR_TRY(remove_path(o.folder + "/" + b.file));
    ++done->removed;
  }
  done->removed += remove_prefix_leftovers(o.folder);
  return {};
}

Status prune(const KvOptions& o, Done* done) {
  Bytes bytes = 0;
  if (o.prune != "0") {
    HR_ASSIGN(bytes, parse_size(o.prune, 0));
  }
  HR_ASSIGN(const FileLock lock, FileLock::take(prefix_lock_path(o.folder), true));
  HR_ASSIGN(done->pruned, evict_prefixes(o.folder, bytes, kMostPrefixEntries, {}));
  return {};
}

Status show_kv(KvOptions o) {
  const Console console = look_at_console();
  std::atomic<bool>* stop = stop_flag();
  std::error_code ignored;
  if (!std::filesystem::is_directory(o.folder, ignored)) {
    return error(Code::kUsage, "%s: no such folder", o.folder.c_str());
  }
  o.verify = o.verify || o.remove_bad;
  Done done;
  for (const std::string& name : o.forget) {
    HR_TRY(remove_named_prefix(o.folder, name).within("--forget"));
    ++done.forgotten;
  }
  ProgressLine progress(console);
  progress.restart();
  const auto look = [&](bool verify) {
    return list_prefixes(o.folder, verify, [&](Bytes at, Bytes all) {
      if (verify) progress.update("verify", at, all, "B/s");
      return !stop->load();
    });
  };
  HR_ASSIGN(PrefixListing list, look(o.verify));
  if (o.remove_bad) HR_TRY(remove_bad(o, list, &done));
  if (!o.prune.empty()) HR_TRY(prune(o, &done));
  if (o.remove_bad || !o.prune.empty()) {
    HR_ASSIGN(list, look(o.verify && !o.remove_bad));
  }
  progress.clear();
  HR_TRY(print_output(o.json ? as_json(o, list, done)
                             : as_text(o, list, done, console.output_style)));
  if (list.bad.empty()) return {};
  return error(Code::kBadFile, "%s: %zu files cannot be used (--remove-bad removes them)",
               o.folder.c_str(), list.bad.size());
}

}  // namespace

void add_kv(CLI::App& app, Action* action) {
  auto o = std::make_shared<KvOptions>();
  CLI::App* verb = app.add_subcommand("kv", "Show, verify or prune kept KV (--prefix-store)");
  verb->add_option("folder", o->folder, "The prefix store's folder")->required();
  verb->add_flag("--verify", o->verify, "Read every byte and name what is damaged (exit code 4)");
  verb->add_flag("--remove-bad", o->remove_bad, "Verify, and remove what is damaged");
  verb->add_option("--prune", o->prune,
                   "Remove the least valuable entries down to this size (2GiB; 0: all)");
  verb->add_option("--forget", o->forget,
                   "Remove the name of a conversation (its entries stay until they are pruned)")
      ->expected(1);
  verb->add_flag("--json", o->json, "As JSON");
  verb->callback([o, action] { *action = [o] { return show_kv(*o); }; });
}

}  // namespace headrace::cli
