// Who may still be using which bytes.
#include <algorithm>

#include "headrace/ir/program_verify.h"

namespace headrace::verifier {

namespace {

size_t stream_count(const Program& p) {
  int32_t most = 0;
  for (const Instr& i : p.instrs) most = std::max(most, i.stream.value);
  return static_cast<size_t>(most) + 1;
}

}  // namespace

ByteOrder::ByteOrder(const Program& p)
    : p_(p), streams_(stream_count(p)), done_(p.instrs.size() * streams_),
      last_(streams_ * streams_), clock_(streams_), tiers_(p.tiers.size()) {}

void ByteOrder::start(int32_t cycle, int32_t step) {
  const Instr& i = p_.instrs[static_cast<size_t>(step)];
  now_ = cycle * p_.exit().value + step + 1;
  stream_ = i.stream.value;
  int32_t* last = &last_[static_cast<size_t>(stream_) * streams_];
  std::copy(last, last + streams_, clock_.begin());
  for (Step w : i.waits) {
    const int32_t* done = &done_[w.index() * streams_];
    for (size_t s = 0; s < streams_; ++s) clock_[s] = std::max(clock_[s], done[s]);
  }
  int32_t* done = &done_[static_cast<size_t>(step) * streams_];
  std::copy(clock_.begin(), clock_.end(), done);
  // A Detach completes after the stream's instructions before it, but those after it do not wait.
  if (i.kind == InstrKind::kDetach) return;
  done[stream_] = now_;
  std::copy(done, done + streams_, last);
}

bool ByteOrder::before(const Access& access) const {
  return access.time == 0 || access.time == now_ ||
         clock_[static_cast<size_t>(access.stream)] >= access.time;
}

int32_t ByteOrder::step_of(const Access& access) const {
  return (access.time - 1) % p_.exit().value;
}

Status ByteOrder::check_read(const Access& writer) const {
  if (before(writer)) return {};
  const int32_t step = step_of(writer);
  const InstrKind kind = p_.instrs[static_cast<size_t>(step)].kind;
  const char* how = kind == InstrKind::kGather || kind == InstrKind::kLoad ? "load"
                    : kind == InstrKind::kCompute                         ? "write"
                                                                          : headrace::name_of(kind);
  return broken(text_of("does not wait for the %s of %s at step %d", how,
                        name_of(p_, *writer.residency).c_str(), step));
}

Status ByteOrder::check_write(const Access& user) const {
  if (before(user)) return {};
  return broken(text_of("bytes of %s may still be in use by step %d",
                        name_of(p_, *user.residency).c_str(), step_of(user)));
}

void ByteOrder::split(Segments& segments, Bytes at) {
  auto next = segments.upper_bound(at);
  if (next == segments.begin()) return;
  auto here = std::prev(next);
  if (here->first == at || here->second.end <= at) return;
  Segment rest = here->second;
  here->second.end = at;
  segments.emplace_hint(next, at, std::move(rest));
}

Status ByteOrder::read(TierId tier, Bytes offset, Bytes bytes, const Residency& residency) {
  Segments& segments = tiers_[tier.index()];
  const Bytes end = offset + bytes;
  split(segments, offset);
  split(segments, end);
  const Access mine{now_, stream_, &residency};
  Bytes at = offset;
  for (auto s = segments.lower_bound(offset); at < end; ++s) {
    if (s == segments.end() || s->first > at) {  // bytes that nobody has touched yet
      const Bytes until = s == segments.end() ? end : std::min(end, s->first);
      s = segments.emplace_hint(s, at, Segment{until, {}, {}});
    }
    HR_TRY(check_read(s->second.writer));
    auto& readers = s->second.readers;
    auto same = std::find_if(readers.begin(), readers.end(),
                             [&](const Access& r) { return r.stream == stream_; });
    if (same == readers.end()) {
      readers.push_back(mine);
    } else {
      *same = mine;
    }
    at = s->second.end;
  }
  return {};
}

Status ByteOrder::write(TierId tier, Bytes offset, Bytes bytes, const Residency& residency) {
  if (bytes == 0) return {};
  Segments& segments = tiers_[tier.index()];
  split(segments, offset);
  split(segments, offset + bytes);
  auto first = segments.lower_bound(offset);
  auto s = first;
  for (; s != segments.end() && s->first < offset + bytes; ++s) {
    HR_TRY(check_write(s->second.writer));
    for (const Access& reader : s->second.readers) HR_TRY(check_write(reader));
  }
  s = segments.erase(first, s);
  segments.emplace_hint(s, offset, Segment{offset + bytes, {now_, stream_, &residency}, {}});
  return {};
}

}  // namespace headrace::verifier
