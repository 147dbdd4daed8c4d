#include "zero/torch_dtype.h"

#include <array>
#include <utility>

#include "zero/error.h"

namespace zero {
namespace {

constexpr std::array<std::pair<Dtype, c10::ScalarType>, 12> kTypes{{
    {Dtype::f32, c10::kFloat},
    {Dtype::bf16, c10::kBFloat16},
    {Dtype::f16, c10::kHalf},
    {Dtype::f64, c10::kDouble},
    {Dtype::f8_e4m3, c10::kFloat8_e4m3fn},
    {Dtype::f8_e5m2, c10::kFloat8_e5m2},
    {Dtype::i64, c10::kLong},
    {Dtype::i32, c10::kInt},
    {Dtype::i16, c10::kShort},
    {Dtype::i8, c10::kChar},
    {Dtype::u8, c10::kByte},
    {Dtype::boolean, c10::kBool},
}};

}  // namespace

Dtype dtype_of(c10::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  fail(ErrorKind::Unsupported, c10::toString(type), "parameters of this element type are not supported");
}

c10::ScalarType scalar_type_of(Dtype dtype) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == dtype) return theirs;
  fail(ErrorKind::Internal, to_string(dtype), "no such element type");
}

}  // namespace zero
