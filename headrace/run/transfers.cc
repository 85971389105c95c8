#include "headrace/run/transfers.h"

#include <algorithm>

#include "headrace/ir/kv.h"

namespace headrace {
namespace {

// Between two looks at the tiers while the thread has nothing else to do. An emulated device is
// held to its plan's times, so it looks more often.
constexpr Nanos kLook = 80'000;
constexpr Nanos kEagerLook = 5'000;
// While an emulated op runs: often only when something is queued, which an end may start.
constexpr Nanos kBusyLook = 20'000;
constexpr Nanos kIdleLook = 250'000;
constexpr Nanos kSpin = 200'000;  // before the end of an emulated op
// Looks without a result after which the thread blocks in a tier instead: one second.
constexpr int kMostLooks = 12'500;
constexpr int kMostEagerLooks = 4'000'000;

}  // namespace

MovedPart moved_part(const TransferStep& t, const StepRows& rows) {
  const MovedPart all{0, t.far.bytes};
  if (!t.kv) return all;
  if (t.selected != nullptr && !rows.dense && *t.selected == 0) return {};
  const KvPart part = kv_part(*t.tensor, t.kind == InstrKind::kStore, rows);
  const Bytes begin = std::max(all.begin, part.begin - t.kv_begin);
  const Bytes end = std::min(all.end, part.end - t.kv_begin);
  return begin < end ? MovedPart{begin, end} : MovedPart();
}

void Transfers::reserve(const PreparedProgram& p) {
  size_t gathers = 0;
  int32_t streams = 1;
  for (const TransferStep& t : p.transfers) {
    streams = std::max(streams, t.stream + 1);
    gathers += t.kind == InstrKind::kGather ? 1 : 0;
  }
  flights_.resize(std::max(flights_.size(), p.program.instrs.size()));
  streams_.resize(std::max(streams_.size(), static_cast<size_t>(streams)));
  rows_.reserve(gathers * static_cast<size_t>(p.program.graph->max_rows));
}

void Transfers::begin_run(Trace* trace, const StepRows* rows, Nanos start) {
  trace_ = trace;
  step_rows_ = rows;
  start_ = start;
  ++run_;
  for (Stream& s : streams_) s.last_end = 0;
}

Result<Bytes> Transfers::issue(int32_t step) {
  HR_TRY(finish(step));
  Stream& s = stream_of(step);
  Flight& f = flight(step);
  f.state = kQueued;
  f.run = run_;
  f.serial = ++serial_;
  f.before = s.tail;
  f.after = -1;
  (s.tail >= 0 ? flight(s.tail).after : s.head) = step;
  s.tail = step;
  if (s.queued < 0) s.queued = step;
  ++queued_;
  const TransferStep& t = p_->transfer(step);
  f.part = t.kind == InstrKind::kGather ? MovedPart() : moved_part(t, *step_rows_);
  Bytes bytes = f.part.bytes();
  if (t.kind == InstrKind::kGather) {
    const Bytes width = row_bytes(t.tensor->dtype, t.tensor->cols);
    for (int32_t token : step_rows_->tokens) {
      bytes += load_extent({0, t.tensor->source.offset + token * width, width}).bytes;
    }
  }
  if (trace_ != nullptr) {
    TraceRecord& r = trace_->records[static_cast<size_t>(step)];
    r.begin_ns = r.end_ns = clock_.now() - start_;
    r.bytes = bytes;
  }
  HR_TRY(start_ready(s));
  return bytes;
}

Status Transfers::start_ready(Stream& s) {
  while (s.queued >= 0) {
    for (int32_t w : p_->transfer(s.queued).waits) {
      if (blocks(w, s.queued)) return {};
    }
    const int32_t step = s.queued;
    s.queued = flight(step).after;
    --queued_;
    ++flying_;
    flight(step).state = kFlying;
    HR_TRY(start(step));
    if (s.head == step && moves_nothing(step)) HR_TRY(end(step));
  }
  return {};
}

Status Transfers::start(int32_t step) {
  const TransferStep& t = p_->transfer(step);
  Flight& f = flight(step);
  f.ticket = {};
  if (trace_ != nullptr && f.run == run_) {
    TraceRecord& r = trace_->records[static_cast<size_t>(step)];
    r.begin_ns = r.end_ns = clock_.now() - start_;
  }
  if (t.kind == InstrKind::kGather) return named(start_rows(step, t), step);
  if (moves_nothing(step)) return {};
  const TierExtent far{t.far.object, t.far.offset + f.part.begin, f.part.bytes()};
  const std::span<std::byte> near = near_of(step);
  Result<Ticket> ticket =
      t.kind == InstrKind::kStore ? t.tier->store(near, far) : t.tier->load(far, near);
  if (!ticket.ok()) return named(ticket.status(), step);
  f.ticket = *ticket;
  return {};
}

// Each row's page-rounded superset, see gathered_row_stride.
Status Transfers::start_rows(int32_t step, const TransferStep& t) {
  const Tensor& table = *t.tensor;
  const Bytes stride = gathered_row_stride(table);
  const Bytes width = row_bytes(table.dtype, table.cols);
  for (int64_t r = 0; r < step_rows_->rows(); ++r) {
    FileExtent row = table.source;
    row.offset += step_rows_->tokens[static_cast<size_t>(r)] * width;
    row.bytes = width;
    const LoadExtent e = load_extent(row);
    const std::span<std::byte> to =
        t.near.subspan(static_cast<size_t>(r * stride), static_cast<size_t>(e.bytes));
    HR_ASSIGN(const Ticket ticket, t.tier->load({row.file, e.offset, e.bytes}, to));
    rows_.push_back({step, ticket});
  }
  return {};
}

// The bytes of the device that a transfer moves; of a gather those that it may.
std::span<std::byte> Transfers::near_of(int32_t step) const {
  const TransferStep& t = p_->transfer(step);
  if (t.kind == InstrKind::kGather) return t.near;
  const MovedPart& part = flights_[static_cast<size_t>(step)].part;
  return t.near.subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.bytes()));
}

bool Transfers::done(int32_t step) {
  const TransferStep& t = p_->transfer(step);
  if (t.kind != InstrKind::kGather) {
    const Ticket ticket = flight(step).ticket;
    return ticket.value == 0 || t.tier->done(ticket);
  }
  return std::all_of(rows_.begin(), rows_.end(), [&](const Row& r) {
    return r.step != step || r.ticket.value == 0 || t.tier->done(r.ticket);
  });
}

Status Transfers::end_rows(int32_t step, Tier& tier) {
  Status first;
  size_t kept = 0;
  for (const Row& r : rows_) {
    if (r.step != step) {
      rows_[kept++] = r;
      continue;
    }
    Status s = r.ticket.value == 0 ? Status() : tier.wait(r.ticket);
    if (first.ok()) first = std::move(s);
  }
  rows_.resize(kept);
  return first;
}

// Waits for a flying step and takes it off its stream.
Status Transfers::end(int32_t step) {
  const TransferStep& t = p_->transfer(step);
  const Ticket ticket = flight(step).ticket;
  Status status;
  if (t.kind == InstrKind::kGather) {
    status = end_rows(step, *t.tier);
  } else if (ticket.value != 0) {
    status = t.tier->wait(ticket);
  }
  Stream& s = stream_of(step);
  if (trace_ != nullptr && flight(step).run == run_) {
    TraceRecord& r = trace_->records[static_cast<size_t>(step)];
    r.end_ns = clock_.now() - start_;
    r.begin_ns = std::clamp(s.last_end, r.begin_ns, r.end_ns);
    s.last_end = r.end_ns;
  }
  remove(step);
  return status.ok() ? status : named(status, step);
}

void Transfers::remove(int32_t step) {
  Stream& s = stream_of(step);
  Flight& f = flight(step);
  (f.before >= 0 ? flight(f.before).after : s.head) = f.after;
  (f.after >= 0 ? flight(f.after).before : s.tail) = f.before;
  f.state = kIdle;
  f.before = f.after = -1;
  --flying_;
}

Status Transfers::pump() {
  if (queued_ == 0 && !(eager_ && flying_ > 0)) return {};
  for (Stream& s : streams_) {
    while (s.head >= 0 && flight(s.head).state == kFlying && done(s.head)) HR_TRY(end(s.head));
  }
  for (Stream& s : streams_) HR_TRY(start_ready(s));
  return {};
}

void Transfers::poll() {
  for (Tier* tier : tiers_) {
    if (tier != nullptr) tier->poll();
  }
}

// Blocks in a tier for the oldest transfer that `step` needs.
Status Transfers::block_for(int32_t step) {
  for (;;) {
    const int32_t head = stream_of(step).head;
    if (flight(head).state == kFlying) return end(head);
    const auto& waits = p_->transfer(head).waits;
    const auto open = std::find_if(waits.begin(), waits.end(),
                                   [&](int32_t w) { return blocks(w, head); });
    if (open == waits.end()) return start_ready(stream_of(step));
    step = *open;
  }
}

Status Transfers::finish(int32_t step) {
  if (ended(step)) return {};
  if (p_->transfer(step).kind == InstrKind::kGather && !p_->stores &&
      flight(step).state == kFlying) {
    return end(step);
  }
  const int most = eager_ ? kMostEagerLooks : kMostLooks;
  for (int looks = 0; !ended(step); ++looks) {
    const bool looking = (queued_ > 0 || eager_) && looks < most;
    if (!looking) HR_TRY(block_for(step));
    HR_TRY(pump());
    if (looking && !ended(step)) clock_.sleep_until(clock_.now() + (eager_ ? kEagerLook : kLook));
  }
  return {};
}

Status Transfers::finish_all() {
  for (Stream& s : streams_) {
    while (s.head >= 0) HR_TRY(finish(s.tail));
  }
  return {};
}

Status Transfers::finish_stores() {
  for (Stream& s : streams_) {
    int32_t last = -1;
    for (int32_t step = s.head; step >= 0; step = flight(step).after) {
      const bool store = p_->transfer(step).kind == InstrKind::kStore;
      if (store || flight(step).state == kQueued) last = step;
    }
    if (last >= 0) HR_TRY(finish(last));
  }
  return {};
}

Status Transfers::busy_until(Nanos deadline) {
  for (;;) {
    HR_TRY(pump());
    const Nanos now = clock_.now();
    if (now >= deadline) return {};
    const Nanos look = queued_ > 0 ? kBusyLook : flying_ > 0 ? kIdleLook : deadline - now;
    const Nanos until = deadline - now > kSpin ? deadline - kSpin : deadline;
    clock_.sleep_until(std::min(until, now + look));
  }
}

void Transfers::drain() {
  for (const Row& r : rows_) (void)p_->transfer(r.step).tier->wait(r.ticket);
  rows_.clear();
  for (Stream& s : streams_) {
    for (int32_t step = s.head; step >= 0;) {
      Flight& f = flight(step);
      if (f.state == kFlying && f.ticket.value != 0) (void)p_->transfer(step).tier->wait(f.ticket);
      step = f.after;
      f = Flight();
    }
    s = Stream();
  }
  queued_ = flying_ = 0;
}

bool Transfers::uses(std::span<const std::byte> bytes) const {
  for (const Stream& s : streams_) {
    for (int32_t step = s.head; step >= 0; step = flights_[static_cast<size_t>(step)].after) {
      const std::span<const std::byte> near = near_of(step);
      if (near.empty()) continue;
      if (near.data() < bytes.data() + bytes.size() && bytes.data() < near.data() + near.size()) {
        return true;
      }
    }
  }
  return false;
}

Status Transfers::named(const Status& status, int32_t step) const {
  if (status.ok()) return status;
  const Instr& i = p_->program.instrs[static_cast<size_t>(step)];
  return status.within(text_of("step %d (%s of '%s', tier '%s')", step, name_of(i.kind),
                               p_->program.graph->at(i.tensor).name.c_str(),
                               p_->program.tiers[i.tier.index()].name.c_str()));
}

}  // namespace headrace
