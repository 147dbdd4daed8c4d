#if defined(__AMX_BF16__)

#include <utility>

#include "operators/product/pack.h"
#include "operators/product/product.h"
#include "operators/product/store.h"
#include "operators/product/tile.h"

namespace zero::product {
namespace {

constexpr int64_t kMostDepth = 1024;  // of one pass over k
constexpr int64_t kKeptBytes =
    800 << 10;  // of the side that is kept packed: it stays in the second-level cache
constexpr int64_t kSumsBytes = 1024 << 10;  // of sums that wait for the next pass

/// What is done while a block is multiplied: tiles are packed for a later panel, the sums of the block before
/// are stored, lines are asked for. The processor overlaps them with the tile products, which take 16 cycles
/// each.
class Chores {
 public:
  Chores(Storing& storing, Packing& packing, int64_t tiles_to_pack, Prefetch& prefetch, int64_t steps)
      : storing_(storing),
        packing_(packing),
        prefetch_(prefetch),
        steps_(steps),
        count_(storing.halves() + tiles_to_pack) {}

  /// All of them are done after `steps` calls.
  [[gnu::always_inline]] void step() {
    prefetch_.step();
    for (due_ += count_; due_ >= steps_; due_ -= steps_) next();
  }

 private:
  void next() {
    if (storing_.halves() > 0)
      storing_.next();
    else
      packing_.next();
  }

  Storing& storing_;
  Packing& packing_;
  Prefetch& prefetch_;
  int64_t steps_, count_, due_ = 0;
};

constexpr SumsPlace kBlockSums{kLineBytes, kTileBytes, 2 * kTileBytes};

/// A left panel by a right one over `steps` tiles of k, added to the sums at `before` if there are any. Sums
/// are left-major, 2 x 2 tiles.
void multiply_panels(const Panel& left, const Panel& right, int64_t steps, const char* before, char* sums,
                     Chores& chores) {
  finish_writes();
  if (before != nullptr)
    kBlockSums.load(before);
  else
    zero_sums();
  const char *l = left.data, *r = right.data;
  for (int64_t step = 0; step < steps; ++step) {
    multiply_step(left, l, right, r);
    chores.step();
    l += left.to_next_step;
    r += right.to_next_step;
  }
  kBlockSums.store(sums);
  finish_writes();
}

struct Operand {
  Bf16Side side;
  int64_t rows;
  Place place;
};

/// How a product is computed: which side gives left tiles, which is kept in the cache, and in which pieces.
struct Plan {
  bool transposed;    // the left tiles are of product.right
  bool left_is_kept;  // the other one streams by, a panel or a group of panels at a time
  Operand kept, streamed;
  int64_t depth;      // of one pass over k
  int64_t kept_rows;  // of one part of the kept side
  int64_t group;      // panels that are packed together

  explicit Plan(const Bf16Product& product) {
    choose_roles(product);
    const Operand left{transposed ? product.right : product.left, transposed ? product.columns : product.rows,
                       Place::Left};
    const Operand right{transposed ? product.left : product.right,
                        transposed ? product.rows : product.columns, Place::Right};
    kept = left_is_kept ? left : right;
    streamed = left_is_kept ? right : left;
    // Lines come in pairs from memory: where rows of a panel are half of one, two panels share it.
    group = streamed.side.along_k ? 1 : 2;
    depth = even_part(product.depth, kMostDepth, kTileDepth);
    kept_rows = even_part(kept.rows, std::max(kKeptBytes / (2 * depth) / kPanel * kPanel, kPanel), kPanel);
  }

  bool one_pass(const Bf16Product& product) const { return product.depth <= depth; }
  int64_t panel_bytes() const { return kPanel * depth * 2; }
  int64_t kept_panels() const { return kept_rows / kPanel; }
  int64_t groups() const { return blocks(streamed.rows, group * kPanel); }
  /// Groups whose sums may wait for the next pass.
  int64_t groups_at_once(const Bf16Product& product) const {
    if (one_pass(product)) return groups();
    return std::min(groups(), std::max<int64_t>(kSumsBytes / (group * kept_panels() * kBlockBytes), 1));
  }
  int64_t sums_bytes(const Bf16Product& product) const {
    return one_pass(product) ? 0 : groups_at_once(product) * group * kept_panels() * kBlockBytes;
  }

 private:
  /// Of the two ways the one with less to transpose, in tiles: what is packed, or the output, two tiles at a
  /// time.
  void choose_roles(const Bf16Product& product) {
    const int64_t m = blocks(product.rows, kTileRows), n = blocks(product.columns, kTileRows),
                  k = blocks(product.depth, kTileDepth);
    const auto cost = [&](const Bf16Side& left, int64_t left_tiles, const Bf16Side& right,
                          int64_t right_tiles) {
      return (left.along_k ? 0 : left_tiles * k) + (right.along_k ? right_tiles * k : 0);
    };
    transposed =
        cost(product.right, n, product.left, m) + m * n / 2 < cost(product.left, m, product.right, n);
    left_is_kept = transposed ? product.columns < product.rows : product.rows <= product.columns;
    // A weight's gradient: what is kept are its columns, so that its rows are written one after another.
    if (!product.left.along_k && !product.right.along_k) left_is_kept = transposed;
  }
};

/// Rows of the kept side and part of k that are multiplied by every panel of the streamed side.
class Pass {
 public:
  struct Memory {
    char *kept, *groups[2], *blocks[2], *sums;
  };

  Pass(const Bf16Product& product, const Plan& plan, Memory& memory, Storing& storing, const Region& kept)
      : product_(product), plan_(plan), memory_(memory), storing_(storing), kept_(kept) {}

  /// Panels [begin, end) of the streamed side. The last block is still to be stored.
  void run(int64_t begin, int64_t end) {
    pack(plan_.kept.side, plan_.kept.place, kept_, memory_.kept);
    begin_ = begin;
    end_ = end;
    packing_of(begin).finish();
    for (int64_t panel = begin; panel < end; panel += plan_.group) run_group(panel);
  }

 private:
  Region region_of(int64_t panel, int64_t panels) const {
    const int64_t row = panel * kPanel;
    return {row, std::min(panels * kPanel, plan_.streamed.rows - row), kept_.k, kept_.depth};
  }
  int64_t panels_of_group(int64_t first) const { return std::min(plan_.group, end_ - first); }
  char* group_at(int64_t first) const { return memory_.groups[(first - begin_) / plan_.group % 2]; }

  /// Whole left tiles that lie along k are multiplied where they are.
  bool is_packed(int64_t panel) const {
    return !(plan_.streamed.place == Place::Left && plan_.streamed.side.along_k &&
             kept_.depth % kTileDepth == 0 && (panel + 1) * kPanel <= plan_.streamed.rows);
  }

  Packing packing_of(int64_t first) const {
    if (first >= end_ || !is_packed(first)) return {};
    return {plan_.streamed.side, plan_.streamed.place, region_of(first, panels_of_group(first)),
            group_at(first)};
  }

  Panel panel_at(int64_t panel, int64_t first) const {
    if (is_packed(panel)) return {group_at(first) + (panel - first) * kept_.panel_bytes()};
    const Bf16Side& side = plan_.streamed.side;
    const int64_t row_bytes = side.stride * 2;
    return {reinterpret_cast<const char*>(side.data + panel * kPanel * side.stride + kept_.k), row_bytes,
            kTileRows * row_bytes, kLineBytes};
  }

  /// Multiplies the panels of a group while the next one is packed and the one after that is fetched.
  void run_group(int64_t first) {
    const int64_t panels = panels_of_group(first), kept_panels = kept_.panels(), steps = kept_.steps();
    const int64_t all_blocks = panels * kept_panels;
    Packing packing = packing_of(first + plan_.group);
    Prefetch fetching;
    const int64_t ahead = first + plan_.group * (packing.tiles() > 0 ? 2 : 1);
    if (ahead < end_)
      fetching = prefetch(plan_.streamed.side, region_of(ahead, panels_of_group(ahead)), all_blocks * steps);
    int64_t block = 0;
    for (int64_t panel = first; panel < first + panels; ++panel) {
      const Panel streamed = panel_at(panel, first);
      for (int64_t kept = 0; kept < kept_panels; ++kept) {
        ++block;
        const int64_t due = packing.tiles() * block / all_blocks - packing.done();
        Chores chores(storing_, packing, due, fetching, steps);
        run_block(panel, streamed, kept, chores);
      }
    }
  }

  void run_block(int64_t panel, const Panel& streamed, int64_t kept, Chores& chores) {
    const bool first = kept_.k == 0, last = kept_.k + kept_.depth >= product_.depth;
    const Panel packed{memory_.kept + kept * kept_.panel_bytes()};
    char* const waiting = memory_.sums + ((panel - begin_) * plan_.kept_panels() + kept) * kBlockBytes;
    char* const to = last ? memory_.blocks[0] : waiting;
    multiply_panels(plan_.left_is_kept ? packed : streamed, plan_.left_is_kept ? streamed : packed,
                    kept_.steps(), first ? nullptr : waiting, to, chores);
    if (!last) return;
    const int64_t kept_row = kept_.row + kept * kPanel, row = panel * kPanel;
    storing_ = Storing(product_, to, plan_.left_is_kept ? kept_row : row, plan_.left_is_kept ? row : kept_row,
                       plan_.transposed);
    std::swap(memory_.blocks[0], memory_.blocks[1]);
  }

  const Bf16Product& product_;
  const Plan& plan_;
  Memory& memory_;
  Storing& storing_;
  Region kept_;
  int64_t begin_ = 0, end_ = 0;
};

int64_t parts_of(const Bf16Product& product) { return Plan(product).groups(); }

int64_t scratch_bytes(const Bf16Product& product) {
  const Plan plan(product);
  return plan.kept_rows * plan.depth * 2 + 2 * plan.group * plan.panel_bytes() + 2 * kBlockBytes +
         plan.sums_bytes(product);
}

void multiply(const Bf16Product& product, int64_t begin, int64_t end, char* scratch) {
  const Plan plan(product);
  const auto take = [&](int64_t bytes) { return std::exchange(scratch, scratch + bytes); };
  Pass::Memory memory{};
  memory.kept = take(plan.kept_rows * plan.depth * 2);
  for (char*& group : memory.groups) group = take(plan.group * plan.panel_bytes());
  for (char*& block : memory.blocks) block = take(kBlockBytes);
  memory.sums = take(plan.sums_bytes(product));

  const Tiles tiles;
  Storing storing;
  const int64_t panels = blocks(plan.streamed.rows, kPanel), at_once = plan.groups_at_once(product);
  for (int64_t part = begin; part < end; part += at_once)
    for (int64_t row = 0; row < plan.kept.rows; row += plan.kept_rows)
      for (int64_t k = 0; k < product.depth; k += plan.depth) {
        const Region kept{row, std::min(plan.kept_rows, plan.kept.rows - row), k,
                          std::min(plan.depth, product.depth - k)};
        Pass(product, plan, memory, storing, kept)
            .run(part * plan.group, std::min(std::min(part + at_once, end) * plan.group, panels));
      }
  while (storing.halves() > 0) storing.next();
  _mm_sfence();
}

}  // namespace

const Kernels kAmx{.parts_of = &parts_of, .scratch_bytes = &scratch_bytes, .multiply = &multiply};

}  // namespace zero::product

#endif
