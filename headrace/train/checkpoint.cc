// Layout of a checkpoint
//   manifest.json  {"body": {format, serial, step, next_sample, loss_scale, good_steps (missing
//                  in older ones), config, block, data_bytes, tensors: [{name, dtype, rows, cols,
//                  bytes, offset, xxh3: [hex]}]},
//                  "xxh3": of the body as compact text with sorted keys}
//   data           the tensors one after the other, each from a page's start
#include "headrace/train/checkpoint.h"

#define XXH_INLINE_ALL  // no library to map: what is mapped counts against small budgets
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "headrace/base/json_fields.h"
#include "headrace/base/json_text.h"
#include "headrace/base/safe_file.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

constexpr Bytes kMaxManifest = 256 * kMiB;
constexpr Bytes kMostBytes = int64_t{1} << 50;
constexpr int64_t kFormat = 1;
constexpr const char* kNew = ".new";
constexpr const char* kOld = ".old";

std::string checkpoints_of(const std::string& run) { return run + "/checkpoints"; }
std::string manifest_of(const std::string& folder) { return folder + "/manifest.json"; }
std::string data_of(const std::string& folder) { return folder + "/data"; }

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}
uint64_t checksum(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string hex(uint64_t value) {
  return text_of("%016llx", static_cast<unsigned long long>(value));
}

std::string compact(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Where a tensor lies in the data, and what its blocks must hash to.
struct Extent {
  Bytes offset = 0;
  std::vector<uint64_t> checksums;
};

struct Manifest {
  CheckpointInfo info;
  int64_t serial = 0;  // counts the checkpoints that were written into the folder
  Bytes data_bytes = 0;
  std::vector<Extent> extents;  // of info.tensors
};

int64_t blocks_of(Bytes bytes) { return (bytes + kCheckpointBlock - 1) / kCheckpointBlock; }

// ---- the manifest -----------------------------------------------------------------------------

std::string to_text(const Manifest& m) {
  Json tensors = Json::array();
  for (size_t i = 0; i < m.info.tensors.size(); ++i) {
    const CheckpointTensor& t = m.info.tensors[i];
    Json sums = Json::array();
    for (const uint64_t sum : m.extents[i].checksums) sums.push_back(hex(sum));
    tensors.push_back({{"name", t.name},
                       {"dtype", t.dtype},
                       {"rows", t.rows},
                       {"cols", t.cols},
                       {"bytes", t.bytes},
                       {"offset", m.extents[i].offset},
                       {"xxh3", std::move(sums)}});
  }
  const Json body = {{"format", kFormat},
                     {"serial", m.serial},
                     {"step", m.info.step},
                     {"next_sample", m.info.next_sample},
                     {"loss_scale", m.info.loss_scale},
                     {"good_steps", m.info.good_steps},
                     {"config", m.info.config},
                     {"block", kCheckpointBlock},
                     {"data_bytes", m.data_bytes},
                     {"tensors", std::move(tensors)}};
  const std::string text = compact(body);
  return "{\"body\":" + text + ",\"xxh3\":\"" + hex(checksum(text)) + "\"}\n";
}

Status read_checksums(const JsonFields& f, Bytes bytes, std::vector<uint64_t>* out) {
  std::vector<std::string> texts;
  HR_TRY(f.texts("xxh3", &texts));
  if (static_cast<int64_t>(texts.size()) != blocks_of(bytes)) {
    return f.bad("xxh3", text_of("has %zu entries for %lld bytes", texts.size(),
                                 static_cast<long long>(bytes))
                             .c_str());
  }
  for (const std::string& text : texts) {
    size_t used = 0;
    uint64_t sum = 0;
    if (text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos) {
      sum = std::stoull(text, &used, 16);
    }
    if (used != 16) return f.bad("xxh3", "has an entry that is no checksum");
    out->push_back(sum);
  }
  return {};
}

Status read_tensor(const Json& object, size_t number, Manifest* m) {
  const JsonFields f(object, "tensor", number);
  HR_TRY(f.only({"name", "dtype", "rows", "cols", "bytes", "offset", "xxh3"}));
  HR_TRY(f.all({"name", "dtype", "rows", "cols", "bytes", "offset", "xxh3"}));
  CheckpointTensor& t = m->info.tensors.emplace_back();
  Extent& e = m->extents.emplace_back();
  HR_TRY(f.text("name", &t.name));
  HR_TRY(f.text("dtype", &t.dtype));
  HR_TRY(f.integer("rows", 0, kMostBytes, &t.rows));
  HR_TRY(f.integer("cols", 0, kMostBytes, &t.cols));
  HR_TRY(f.integer("bytes", 0, kMostBytes, &t.bytes));
  HR_TRY(f.integer("offset", 0, kMostBytes, &e.offset));
  if (e.offset + t.bytes > m->data_bytes) {
    return f.bad("offset", text_of("and bytes lie outside the %lld bytes of data",
                                   static_cast<long long>(m->data_bytes))
                               .c_str());
  }
  return read_checksums(f, t.bytes, &e.checksums);
}

Status read_body(const Json& body, Manifest* m) {
  const JsonFields f(body, "the manifest");
  HR_TRY(f.all({"format", "serial", "step", "next_sample", "loss_scale", "config", "block",
                "data_bytes", "tensors"}));
  int64_t format = 0, block = 0;
  HR_TRY(f.integer("format", 0, INT64_MAX, &format));
  HR_TRY(f.integer("block", 1, INT64_MAX, &block));
  if (format != kFormat || block != kCheckpointBlock) {
    return error(Code::kUnsupported,
                 "the checkpoint is of format %lld with blocks of %lld bytes; format %lld with "
                 "blocks of %lld is supported",
                 static_cast<long long>(format), static_cast<long long>(block),
                 static_cast<long long>(kFormat), static_cast<long long>(kCheckpointBlock));
  }
  HR_TRY(f.integer("serial", 0, INT64_MAX, &m->serial));
  HR_TRY(f.integer("step", 0, INT64_MAX, &m->info.step));
  HR_TRY(f.integer("next_sample", 0, INT64_MAX, &m->info.next_sample));
  HR_TRY(f.number("loss_scale", 0, HUGE_VAL, &m->info.loss_scale));
  HR_TRY(f.integer("good_steps", -1, INT64_MAX, &m->info.good_steps));
  HR_TRY(f.text("config", &m->info.config));
  HR_TRY(f.integer("data_bytes", 0, kMostBytes, &m->data_bytes));
  const Json& tensors = *f.find("tensors");
  if (!tensors.is_array()) return f.bad("tensors", "is not a list");
  for (size_t i = 0; i < tensors.size(); ++i) HR_TRY(read_tensor(tensors[i], i, m));
  return {};
}

Result<Manifest> parse_manifest(const std::string& text) {
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return json_error(text);
  const JsonFields f(document, "the manifest");
  HR_TRY(f.only({"body", "xxh3"}));
  HR_TRY(f.all({"body", "xxh3"}));
  std::string sum;
  HR_TRY(f.text("xxh3", &sum));
  const Json& body = *f.find("body");
  if (sum != hex(checksum(compact(body)))) {
    return error(Code::kBadFile, "the manifest does not have its checksum");
  }
  Manifest m;
  HR_TRY(read_body(body, &m));
  return m;
}

Result<Manifest> read_manifest(const std::string& folder) {
  const std::string path = manifest_of(folder);
  HR_ASSIGN(const std::string text, read_text(path, kMaxManifest));
  auto m = parse_manifest(text);
  if (!m.ok()) return m.status().within(path);
  return m;
}

Result<InFile> open_data(const std::string& folder, const Manifest& m) {
  HR_ASSIGN(InFile in, InFile::open(data_of(folder)));
  if (in.size() == m.data_bytes) return in;
  return error(Code::kBadFile, "%s: %lld bytes; the manifest says %lld", in.path().c_str(),
               static_cast<long long>(in.size()), static_cast<long long>(m.data_bytes));
}

// Reads block `block` of a tensor into `out`, which has its size.
Status read_block(const InFile& in, const Manifest& m, size_t index, int64_t block,
                  std::span<std::byte> out) {
  const Extent& e = m.extents[index];
  HR_TRY(in.read(e.offset + block * kCheckpointBlock, out));
  if (checksum(out) == e.checksums[static_cast<size_t>(block)]) return {};
  return error(Code::kBadFile, "%s: tensor '%s': bytes from %lld do not have their checksum",
               in.path().c_str(), printable(m.info.tensors[index].name).c_str(),
               static_cast<long long>(block * kCheckpointBlock));
}

// ---- the folder of checkpoints ----------------------------------------------------------------

struct Found {
  std::string path;
  int64_t serial = -1;  // of a whole manifest with data of its size
};

bool is_step_name(const std::string& name) {
  return name.starts_with("step-") && name.size() > 5 &&
         name.find_first_not_of("0123456789", 5) == std::string::npos;
}

// Every folder that has the name of a checkpoint, the one written last first; broken ones last.
Result<std::vector<Found>> find_checkpoints(const std::string& folder) {
  std::vector<Found> out;
  std::error_code ec;
  if (!std::filesystem::is_directory(folder, ec)) return out;
  for (auto it = std::filesystem::directory_iterator(folder, ec);
       !ec && it != std::filesystem::directory_iterator(); it.increment(ec)) {
    if (is_step_name(it->path().filename().string())) out.push_back({it->path().string()});
  }
  if (ec) return error(Code::kIo, "%s: list: %s", folder.c_str(), ec.message().c_str());
  for (Found& found : out) {
    const auto m = read_manifest(found.path);
    if (m.ok() && open_data(found.path, *m).ok()) found.serial = m->serial;
  }
  std::sort(out.begin(), out.end(), [](const Found& a, const Found& b) {
    return a.serial != b.serial ? a.serial > b.serial : a.path > b.path;
  });
  return out;
}

// ---- writing ----------------------------------------------------------------------------------

struct Writing {
  const CheckpointInfo& info;
  std::span<std::byte> block;
  const ReadPart& read;
  const ByteProgress& progress;
};

Status write_tensor(const Writing& w, size_t index, Bytes done, Bytes total, OutFile* out,
                    Extent* extent) {
  HR_TRY(out->pad_to(kPage));
  extent->offset = out->written();
  const Bytes bytes = w.info.tensors[index].bytes;
  for (Bytes begin = 0; begin < bytes; begin += kCheckpointBlock) {
    const Bytes n = std::min(kCheckpointBlock, bytes - begin);
    const auto part = w.block.first(static_cast<size_t>(n));
    HR_TRY(w.read(index, begin, part));
    extent->checksums.push_back(checksum(part));
    HR_TRY(out->append(part));
    if (w.progress) w.progress(done + begin + n, total);
  }
  return {};
}

Status write_files(const Writing& w, const std::string& folder, int64_t serial) {
  Manifest m;
  m.info = w.info;
  m.serial = serial;
  Bytes total = 0, done = 0;
  for (const CheckpointTensor& t : w.info.tensors) total += t.bytes;
  HR_ASSIGN(OutFile data, OutFile::create(data_of(folder)));
  for (size_t i = 0; i < w.info.tensors.size(); ++i) {
    HR_TRY(write_tensor(w, i, done, total, &data, &m.extents.emplace_back()));
    done += w.info.tensors[i].bytes;
  }
  m.data_bytes = data.written();
  HR_TRY(data.sync());
  HR_ASSIGN(OutFile manifest, OutFile::create(manifest_of(folder)));
  HR_TRY(manifest.append(to_text(m)));
  HR_TRY(manifest.sync());
  return sync_folder(folder);
}

// From the temporary folder to its name; one of that name is replaced.
Status publish(const std::string& from, const std::string& to) {
  std::error_code ec;
  const bool there = std::filesystem::exists(to, ec);
  if (ec) return error(Code::kIo, "%s: look: %s", to.c_str(), ec.message().c_str());
  return there ? exchange_paths(from, to) : move_path(from, to);
}

// A folder is renamed before it is emptied, so that a kill leaves nothing half removed under a
// name that counts.
Status prune(const std::string& folder, const std::string& written, int64_t keep) {
  HR_ASSIGN(const std::vector<Found> found, find_checkpoints(folder));
  int64_t kept = 1;
  for (const Found& f : found) {
    if (f.path == written) continue;
    if (f.serial >= 0 && kept < keep) {
      ++kept;
      continue;
    }
    const std::string old = folder + "/" + kOld;
    HR_TRY(move_path(f.path, old));
    HR_TRY(remove_path(old));
  }
  return {};
}

Status check_names(const CheckpointInfo& info) {
  std::set<std::string_view> names;
  for (const CheckpointTensor& t : info.tensors) {
    HR_CHECK(t.bytes >= 0 && t.rows >= 0 && t.cols >= 0, "a tensor has a size");
    HR_CHECK(names.insert(t.name).second, "every tensor has a name of its own");
  }
  return {};
}

}  // namespace

Status write_checkpoint(const std::string& run, const CheckpointInfo& info, int64_t keep,
                        std::span<std::byte> block, const ReadPart& read,
                        const ByteProgress& progress) {
  HR_CHECK(static_cast<Bytes>(block.size()) >= kCheckpointBlock, "a block is lent");
  HR_TRY(check_names(info));
  const std::string folder = checkpoints_of(run);
  HR_TRY(make_folders(folder));
  HR_ASSIGN(const FileLock lock, FileLock::take(folder + "/lock", /*wait=*/true));
  const std::string temporary = folder + "/" + kNew;
  HR_TRY(remove_path(temporary));
  HR_TRY(remove_path(folder + "/" + kOld));
  HR_ASSIGN(const std::vector<Found> before, find_checkpoints(folder));
  const int64_t serial = before.empty() ? 0 : before.front().serial + 1;
  const std::string target = folder + text_of("/step-%08lld", static_cast<long long>(info.step));
  Status status = make_folders(temporary);
  if (status.ok()) status = write_files({info, block, read, progress}, temporary, serial);
  if (status.ok()) status = publish(temporary, target);
  if (!status.ok()) {
    (void)remove_path(temporary);  // the first error is the one to tell
    return status;
  }
  HR_TRY(sync_folder(folder));
  HR_TRY(remove_path(temporary));
  return prune(folder, target, std::max<int64_t>(1, keep)).within("after a checkpoint was written");
}

Result<std::vector<std::string>> list_checkpoints(const std::string& run) {
  HR_ASSIGN(const std::vector<Found> found, find_checkpoints(checkpoints_of(run)));
  std::vector<std::string> out;
  for (const Found& f : found) {
    if (f.serial >= 0) out.push_back(f.path);
  }
  return out;
}

Result<std::string> latest_checkpoint(const std::string& run) {
  HR_ASSIGN(const std::vector<std::string> all, list_checkpoints(run));
  return all.empty() ? std::string() : all.front();
}

Result<CheckpointInfo> read_checkpoint_info(const std::string& folder) {
  HR_ASSIGN(Manifest m, read_manifest(folder));
  return std::move(m.info);
}

Status read_checkpoint(const std::string& folder, const CheckpointInfo& info,
                       std::span<std::byte> block, const WritePart& write,
                       const ByteProgress& progress) {
  HR_CHECK(static_cast<Bytes>(block.size()) >= kCheckpointBlock, "a block is lent");
  HR_ASSIGN(const Manifest m, read_manifest(folder));
  HR_ASSIGN(const InFile in, open_data(folder, m));
  HR_CHECK(info.tensors.size() == m.info.tensors.size(), "info is of this checkpoint");
  Bytes total = 0, done = 0;
  for (const CheckpointTensor& t : m.info.tensors) total += t.bytes;
  for (size_t i = 0; i < m.info.tensors.size(); ++i) {
    const Bytes bytes = m.info.tensors[i].bytes;
    for (int64_t b = 0; b < blocks_of(bytes); ++b) {
      const Bytes begin = b * kCheckpointBlock;
      const auto part = block.first(static_cast<size_t>(std::min(kCheckpointBlock, bytes - begin)));
      HR_TRY(read_block(in, m, i, b, part));
      HR_TRY(write(i, begin, part));
      done += static_cast<Bytes>(part.size());
      if (progress) progress(done, total);
      in.forget();
    }
  }
  return {};
}

// ---- reading at any place ---------------------------------------------------------------------

struct CheckpointReader::State {
  struct Held {
    size_t index = SIZE_MAX;
    int64_t block = -1;
    uint64_t used = 0;  // when it was used last
    std::vector<std::byte> bytes;
  };
  Manifest manifest;
  InFile in;
  std::map<std::string, int64_t, std::less<>> names;
  std::array<Held, 3> held;
  uint64_t uses = 0;
};

CheckpointReader::CheckpointReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
CheckpointReader::~CheckpointReader() = default;

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::open(const std::string& folder) {
  HR_ASSIGN(Manifest m, read_manifest(folder));
  HR_ASSIGN(InFile in, open_data(folder, m));
  auto state = std::make_unique<State>(State{std::move(m), std::move(in), {}, {}, 0});
  const std::vector<CheckpointTensor>& tensors = state->manifest.info.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    state->names.emplace(tensors[i].name, static_cast<int64_t>(i));
  }
  return std::unique_ptr<CheckpointReader>(new CheckpointReader(std::move(state)));
}

const CheckpointInfo& CheckpointReader::info() const { return state_->manifest.info; }

int64_t CheckpointReader::find(std::string_view name) const {
  const auto it = state_->names.find(name);
  return it == state_->names.end() ? -1 : it->second;
}

Status CheckpointReader::read(size_t index, Bytes begin, std::span<std::byte> out) {
  State& s = *state_;
  const Bytes bytes = s.manifest.info.tensors[index].bytes;
  HR_CHECK(begin >= 0 && begin + static_cast<Bytes>(out.size()) <= bytes, "a part of the tensor");
  while (!out.empty()) {
    const int64_t block = begin / kCheckpointBlock;
    State::Held* use = &s.held[0];
    for (State::Held& held : s.held) {
      if (held.index == index && held.block == block) {
        use = &held;
        break;
      }
      if (held.used < use->used) use = &held;
    }
    if (use->index != index || use->block != block) {
      use->index = SIZE_MAX;
      use->bytes.resize(
          static_cast<size_t>(std::min(kCheckpointBlock, bytes - block * kCheckpointBlock)));
      HR_TRY(read_block(s.in, s.manifest, index, block, use->bytes));
      s.in.forget();
      use->index = index;
      use->block = block;
    }
    use->used = ++s.uses;
    const auto skip = static_cast<size_t>(begin - block * kCheckpointBlock);
    const size_t n = std::min(out.size(), use->bytes.size() - skip);
    std::copy_n(use->bytes.begin() + static_cast<ptrdiff_t>(skip), n, out.begin());
    out = out.subspan(n);
    begin += static_cast<Bytes>(n);
  }
  return {};
}

}  // namespace headrace
