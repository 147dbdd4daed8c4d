#include "export/low_rank.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/json.h"
#include "export/convert.h"
#include "zero/error.h"

namespace zero::exporting {
namespace {

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
};

Matrix read_matrix(const CheckpointReader& reader, const std::string& name) {
  const auto found = reader.tensors().find(name);
  const bool is_matrix = found != reader.tensors().end() && found->second.shape.size() == 2 &&
                         is_convertible(found->second.dtype, Dtype::f32);
  require(is_matrix, ErrorKind::Corrupt, "adapter " + checkpoint::in_quotes(name),
          "the checkpoint holds no such matrix");
  const StoredTensor& stored = found->second;
  Matrix matrix{.rows = stored.shape[0], .columns = stored.shape[1], .values = {}};
  const int64_t numel = matrix.rows * matrix.columns;
  std::vector<std::byte> bytes(numel * itemsize(stored.dtype)), wide;
  reader.read(name, BoxRange::whole(stored.shape), bytes.data());
  convert(stored.dtype, bytes, Dtype::f32, wide, name);
  matrix.values.resize(numel);
  std::memcpy(matrix.values.data(), wide.data(), wide.size());
  return matrix;
}

void transpose(Matrix& matrix) {
  std::vector<float> turned(matrix.values.size());
  for (int64_t i = 0; i < matrix.rows; ++i)
    for (int64_t j = 0; j < matrix.columns; ++j)
      turned[j * matrix.rows + i] = matrix.values[i * matrix.columns + j];
  matrix.values = std::move(turned);
  std::swap(matrix.rows, matrix.columns);
}

}  // namespace

LowRankUpdate::LowRankUpdate(const CheckpointReader& reader, const LowRank& adapter,
                             std::span<const int64_t> shape)
    : scale_(static_cast<float>(adapter.scale)) {
  Matrix left = read_matrix(reader, adapter.b), right = read_matrix(reader, adapter.a);
  if (adapter.in_out) {
    std::swap(left, right);
    transpose(left);
    transpose(right);
  }
  const bool fits =
      shape.size() == 2 && left.rows == shape[0] && right.columns == shape[1] && left.columns == right.rows;
  require(fits, ErrorKind::Corrupt, "adapter " + checkpoint::in_quotes(adapter.a),
          "its shape does not fit its weight's");
  rank_ = right.rows;
  columns_ = right.columns;
  left_ = std::move(left.values);
  right_ = std::move(right.values);
  sum_.resize(columns_);
}

void LowRankUpdate::add_to(int64_t begin, std::span<float> values) {
  while (!values.empty()) {
    const int64_t row = begin / columns_, column = begin % columns_;
    const auto count = std::min<size_t>(values.size(), columns_ - column);
    add_to_row(row, column, values.first(count));
    begin += static_cast<int64_t>(count);
    values = values.subspan(count);
  }
}

void LowRankUpdate::add_to_row(int64_t row, int64_t first_column, std::span<float> values) {
  const std::span<float> sum = std::span(sum_).first(values.size());
  std::fill(sum.begin(), sum.end(), 0.0f);
  for (int64_t k = 0; k < rank_; ++k) {
    const float factor = left_[row * rank_ + k];
    const float* line = right_.data() + k * columns_ + first_column;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * line[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) values[i] += scale_ * sum[i];
}

}  // namespace zero::exporting
