#include "pipeline/schedules.h"

#include <algorithm>
#include <optional>
#include <string>

#include "zero/error.h"

namespace zero::pipeline {
namespace {

using Row = std::vector<Action>;

struct Named {
  Kind kind;
  std::string_view name;
};
constexpr Named kKinds[] = {
    {Kind::GPipe, "gpipe"},  {Kind::OneFOneB, "1f1b"}, {Kind::Interleaved, "interleaved"},
    {Kind::ZbH1, "zb-h1"},   {Kind::ZbH2, "zb-h2"},    {Kind::ZbV, "zb-v"},
    {Kind::Search, "search"}};

/// When gradients of weights come, where they do not come with the backward of the input.
struct Apart {
  int lag = 0;                 // after the backward that is this much later
  bool after_forward = false;  // and after the forward behind it
};

/// `first` forwards, then a backward and a forward in turn.
Row in_turn(int micro_batches, int first, std::optional<Apart> apart) {
  Row row;
  int forward = 0, backward = 0, weight = 0;
  auto add_weight = [&](bool here) {
    if (apart && here && backward > apart->lag) row.push_back({Pass::BackwardWeight, 0, weight++});
  };
  while (forward < std::min(first, micro_batches)) row.push_back({Pass::Forward, 0, forward++});
  while (backward < micro_batches) {
    row.push_back({apart ? Pass::BackwardInput : Pass::Backward, 0, backward++});
    add_weight(apart && !apart->after_forward);
    if (forward < micro_batches) row.push_back({Pass::Forward, 0, forward++});
    add_weight(apart && apart->after_forward);
  }
  while (apart && weight < micro_batches) row.push_back({Pass::BackwardWeight, 0, weight++});
  return row;
}

template <class RowOf>
Table by_rank(const Shape& shape, RowOf row_of) {
  check_shape(shape);
  Table table{shape, {}};
  for (int rank = 0; rank < shape.ranks; ++rank) table.rows.push_back(row_of(rank));
  return table;
}

Table gpipe(const Shape& shape) {
  return by_rank(shape, [&](int) { return in_turn(shape.micro_batches, shape.micro_batches, std::nullopt); });
}

Table one_f_one_b(const Shape& shape) {
  return by_rank(shape,
                 [&](int rank) { return in_turn(shape.micro_batches, shape.ranks - rank, std::nullopt); });
}

Table zb_h1(const Shape& shape) {
  return by_rank(shape, [&](int rank) {
    return in_turn(shape.micro_batches, shape.ranks - rank, Apart{rank, false});
  });
}

Table zb_h2(const Shape& shape) {
  return by_rank(shape, [&](int rank) {
    return in_turn(shape.micro_batches, 2 * (shape.ranks - rank) - 1, Apart{2 * rank, true});
  });
}

/// Micro-batches go through the chunks in groups of as many as there are ranks: all of a group through one
/// chunk, then through the next.
Row grouped(const Shape& shape, Pass pass) {
  Row order;
  for (int begin = 0; begin < shape.micro_batches; begin += shape.ranks)
    for (int i = 0; i < shape.chunks; ++i)
      for (int m = begin; m < std::min(begin + shape.ranks, shape.micro_batches); ++m)
        order.push_back({pass, pass == Pass::Forward ? i : shape.chunks - 1 - i, m});
  return order;
}

/// The published order takes a number of micro-batches that the ranks divide. A last group that is smaller
/// would make ranks wait for each other in a circle: there a rank takes what it can do of the two that are
/// next.
Table interleaved(const Shape& shape) {
  const Row forward = grouped(shape, Pass::Forward), backward = grouped(shape, Pass::Backward);
  Weaver weaver(shape, StageCosts{});
  std::vector<size_t> next_forward(shape.ranks, 0), next_backward(shape.ranks, 0);
  auto first = [&](int rank) {
    return size_t(2 * (shape.ranks - rank - 1) + (shape.chunks - 1) * shape.ranks + 1);
  };
  auto place = [&](int rank, bool back) {
    size_t& next = back ? next_backward[rank] : next_forward[rank];
    const Row& order = back ? backward : forward;
    if (next == order.size() || !weaver.start_of(rank, order[next])) return false;
    weaver.place(rank, order[next++]);
    return true;
  };
  auto backward_is_due = [&](int rank) {
    return next_forward[rank] == forward.size() ||
           next_forward[rank] >= std::min(first(rank) + next_backward[rank], forward.size());
  };
  auto advance = [&](bool either) {
    bool moved = false;
    for (int rank = 0; rank < shape.ranks && !(either && moved); ++rank) {
      const bool back = backward_is_due(rank);
      moved |= place(rank, back) || (either && place(rank, !back));
    }
    return moved;
  };
  while (advance(false) || advance(true)) continue;
  return weaver.table();
}

}  // namespace

std::string_view to_string(Kind kind) {
  for (const Named& named : kKinds)
    if (named.kind == kind) return named.name;
  fail(ErrorKind::Internal, "pipeline", "a schedule has no name");
}

const std::vector<Kind>& all_kinds() {
  static const std::vector<Kind> kinds = [] {
    std::vector<Kind> all;
    for (const Named& named : kKinds) all.push_back(named.kind);
    return all;
  }();
  return kinds;
}

Kind kind_from(std::string_view name) {
  std::string names;
  for (const Named& named : kKinds) {
    if (named.name == name) return named.kind;
    names += (names.empty() ? "" : ", ") + std::string(named.name);
  }
  fail(ErrorKind::Config, "pipeline schedule", "there is no \"" + std::string(name) + "\"",
       "it is one of " + names);
}

Table make_schedule(Kind kind, int ranks, int micro_batches, int chunks, const SearchOptions& options) {
  const Shape shape{ranks, micro_batches, 1, Placement::Loop};
  check_shape(shape);
  switch (kind) {
    case Kind::GPipe:
      return gpipe(shape);
    case Kind::OneFOneB:
      return one_f_one_b(shape);
    case Kind::Interleaved: {
      const Shape loop{ranks, micro_batches, chunks, Placement::Loop};
      check_shape(loop);
      return interleaved(loop);
    }
    case Kind::ZbH1:
      return zb_h1(shape);
    case Kind::ZbH2:
      return zb_h2(shape);
    case Kind::ZbV:
      return search_v(ranks, micro_batches, options);
    case Kind::Search:
      return search(ranks, micro_batches, options);
  }
  fail(ErrorKind::Internal, "pipeline", "a schedule has no function");
}

}  // namespace zero::pipeline
