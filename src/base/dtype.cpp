#include "zero/dtype.h"

#include <array>

namespace zero {
namespace {
struct Row {
  Dtype dtype;
  int64_t bytes;
  bool floating;
  std::string_view safetensors, name;
};
constexpr std::array<Row, 12> kDtypeRows{{
    {Dtype::f32, 4, true, "F32", "fp32"},
    {Dtype::bf16, 2, true, "BF16", "bf16"},
    {Dtype::f16, 2, true, "F16", "fp16"},
    {Dtype::f64, 8, true, "F64", "fp64"},
    {Dtype::f8_e4m3, 1, true, "F8_E4M3", "fp8_e4m3"},
    {Dtype::f8_e5m2, 1, true, "F8_E5M2", "fp8_e5m2"},
    {Dtype::i64, 8, false, "I64", "int64"},
    {Dtype::i32, 4, false, "I32", "int32"},
    {Dtype::i16, 2, false, "I16", "int16"},
    {Dtype::i8, 1, false, "I8", "int8"},
    {Dtype::u8, 1, false, "U8", "uint8"},
    {Dtype::boolean, 1, false, "BOOL", "bool"},
}};
const Row& row(Dtype dtype) { return kDtypeRows[static_cast<size_t>(dtype)]; }
}  // namespace

int64_t itemsize(Dtype dtype) { return row(dtype).bytes; }
bool is_floating(Dtype dtype) { return row(dtype).floating; }
std::string_view safetensors_name(Dtype dtype) { return row(dtype).safetensors; }
std::string_view to_string(Dtype dtype) { return row(dtype).name; }

std::optional<Dtype> dtype_from_safetensors(std::string_view name) {
  for (const Row& candidate : kDtypeRows)
    if (candidate.safetensors == name) return candidate.dtype;
  return std::nullopt;
}

}  // namespace zero
