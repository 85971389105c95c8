// Forms of values, their pieces, and the residencies that say so.
#include <algorithm>

#include "headrace/plan/emit_step_walker.h"

namespace headrace::plan::walk {

int32_t Walker::open(TensorId t, TierId tier, Codec codec, Range range, Bytes bytes, int32_t begin,
                     int32_t block) {
  Residency r;
  r.tensor = t;
  r.tier = tier;
  r.codec = codec;
  r.range = range;
  r.bytes = bytes;
  r.begin = Step(begin);
  r.end = Step(kNone);  // open
  program().residencies.push_back(r);
  d_.block.push_back(block);
  return static_cast<int32_t>(program().residencies.size()) - 1;
}

Range Walker::range_of(int32_t v, Codec codec, Bytes begin, Bytes end) const {
  if (begin == 0 && end == form_bytes(v, codec)) return {};
  return {begin, end - begin};
}

Form* Walker::find(std::vector<Form>& forms, TierId tier, Codec codec) {
  for (Form& f : forms) {
    if (f.tier == tier && f.codec == codec) return &f;
  }
  return nullptr;
}

Form& Walker::form(std::vector<Form>& forms, TierId tier, Codec codec) {
  if (Form* f = find(forms, tier, codec)) return *f;
  Form f;
  f.tier = tier;
  f.codec = codec;
  f.block = d_.blocks++;
  forms.push_back(f);
  return forms.back();
}

void Walker::add_piece(int32_t v, Form& f, Bytes begin, Bytes end, int32_t step, int32_t arrival) {
  Piece piece{begin, end, 0, arrival, kNone};
  piece.residency = open(value(v).tensor, f.tier, f.codec, range_of(v, f.codec, begin, end),
                         end - begin, step, f.block);
  const auto at = std::lower_bound(f.pieces.begin(), f.pieces.end(), begin,
                                   [](const Piece& q, Bytes b) { return q.begin < b; });
  f.pieces.insert(at, piece);
}

Bytes Walker::covered(const Form& f, Bytes begin, Bytes end) {
  Bytes sum = 0;
  for (const Piece& q : f.pieces) {
    sum += std::max<Bytes>(0, std::min(end, q.end) - std::max(begin, q.begin));
  }
  return sum;
}

bool Walker::whole(int32_t v, const Form* f) const {
  return f != nullptr && covered(*f, 0, form_bytes(v, f->codec)) == form_bytes(v, f->codec);
}

// Cuts the piece that has `at` in its inside, and its residency, in two.
void Walker::cut(int32_t v, Form& f, Bytes at) {
  for (size_t i = 0; i < f.pieces.size(); ++i) {
    Piece& q = f.pieces[i];
    if (at <= q.begin || at >= q.end) continue;
    Piece right = q;
    right.begin = at;
    Residency copy = residency(q.residency);
    copy.range = range_of(v, f.codec, at, q.end);
    copy.bytes = q.end - at;
    Residency& left = residency(q.residency);
    left.range = range_of(v, f.codec, q.begin, at);
    left.bytes = at - q.begin;
    q.end = at;
    program().residencies.push_back(copy);
    d_.block.push_back(f.block);
    right.residency = static_cast<int32_t>(program().residencies.size()) - 1;
    f.pieces.insert(f.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1, right);
    return;
  }
}

void Walker::close(Form& f, int32_t end) {
  for (Piece& q : f.pieces) residency(q.residency).end = Step(end);
  f.pieces.clear();
}

void Walker::forget_empty(std::vector<Form>& forms) {
  std::erase_if(forms, [](const Form& f) { return f.pieces.empty(); });
}

// A copy ends with its last reader, or with the store that nobody read.
void Walker::close_copy(Form& f) {
  for (Piece& q : f.pieces) {
    const int32_t last = std::max({q.arrival, q.last_use, kNone});
    Residency& r = residency(q.residency);
    r.end = Step(std::max(last + 1, r.begin.value + 1));
  }
  f.pieces.clear();
}

}  // namespace headrace::plan::walk
