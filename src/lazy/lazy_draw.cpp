#include "lazy/lazy_draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "compute/parallel.h"
#include "lazy/mersenne_skip.h"

namespace zero::detail {
namespace {

constexpr int64_t kBlock = 16;       // elements that normal_ makes from as many numbers
constexpr int64_t kPiece = 1 << 18;  // elements that a thread draws at a time

bool is_contiguous(const TensorRef& tensor) {
  int64_t expected = 1;
  for (size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

// A run of elements that one call fills from one place of the stream.
struct Piece {
  int64_t begin, numel;
  at::mt19937 stream;
};

class Pieces {
 public:
  explicit Pieces(const at::mt19937& stream) : stream_(stream) {}
  /// Elements [begin, end), from the numbers that stand `at` into the call.
  void add(int64_t begin, int64_t end, int64_t at) {
    for (; begin < end; begin += kPiece, at += kPiece) {
      skip_numbers(stream_, at - passed_);
      passed_ = at;
      pieces_.push_back({begin, std::min(kPiece, end - begin), stream_});
    }
  }
  void fill(const Draw& draw, const at::Tensor& flat) const {
    const at::Tensor measure = at::empty({static_cast<int64_t>(pieces_.size())}, at::kByte);
    parallel_over(measure, 1, [&](int64_t first, int64_t last) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;  // of this thread
      at::Generator generator = at::detail::createCPUGenerator();
      for (int64_t i = first; i < last; ++i) {
        const Piece& piece = pieces_[i];
        generator.get<at::CPUGeneratorImpl>()->set_engine(piece.stream);
        at::Tensor part = flat.narrow(0, piece.begin, piece.numel);
        if (draw.kind == Draw::Kind::Normal)
          part.normal_(draw.first, draw.second, generator);
        else
          part.uniform_(draw.first, draw.second, generator);
      }
    });
  }

 private:
  at::mt19937 stream_;
  int64_t passed_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace

void skip_numbers(at::mt19937& stream, int64_t numbers) {
  at::mt19937_data_pod state = stream.data();
  while (numbers > 0) {
    // `left_` counts the call that turns the state, too.
    const int64_t taken = std::min<int64_t>(numbers, state.left_ - 1);
    state.left_ -= static_cast<int>(taken);
    state.next_ += static_cast<uint32_t>(taken);
    numbers -= taken;
    if (numbers == 0) break;
    turn_mersenne_state(state.state_.data());
    state.left_ = at::MERSENNE_STATE_N;
    state.next_ = 1;
    --numbers;
  }
  stream.set_data(state);
}

int64_t Draw::numbers() const {
  // normal_ makes the last block anew where the elements before it are no whole blocks.
  return kind == Kind::Normal && numel % kBlock != 0 ? numel + kBlock : numel;
}

std::optional<Draw> draw_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                            const TensorRef& target) {
  const std::string name = operator_name(op);
  const bool normal = name == "aten::normal_";
  if ((!normal && name != "aten::uniform_") || !arguments.back().isNone()) return std::nullopt;
  if (target.dtype != at::kFloat || !is_contiguous(target)) return std::nullopt;
  Draw draw{.kind = normal ? Draw::Kind::Normal : Draw::Kind::Uniform,
            .first = arguments.at(1).toDouble(),
            .second = arguments.at(2).toDouble(),
            .numel = c10::multiply_integers(target.sizes)};
  if (normal && draw.numel < kBlock) return std::nullopt;  // these come in pairs, the second kept for later
  return draw;
}

void draw_part(const Draw& draw, const at::Tensor& flat, int64_t begin, int64_t end) {
  auto* generator = at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
  const std::lock_guard<std::mutex> lock(generator->mutex_);
  const at::mt19937 stream = generator->engine();
  if (begin < end) {
    Pieces pieces(stream);
    if (draw.kind == Draw::Kind::Uniform) {
      pieces.add(begin, end, begin);
    } else {
      const int64_t blocks_end = draw.numel / kBlock * kBlock;
      const int64_t first = begin / kBlock * kBlock;
      pieces.add(first, std::min((end + kBlock - 1) / kBlock * kBlock, blocks_end), first);
    }
    pieces.fill(draw, flat);
    if (draw.numbers() > draw.numel && end > draw.numel - kBlock) {
      Pieces last(stream);
      last.add(draw.numel - kBlock, draw.numel, draw.numel);
      last.fill(draw, flat);
    }
  }
  at::mt19937 after = stream;
  skip_numbers(after, draw.numbers());
  generator->set_engine(after);
}

}  // namespace zero::detail
