#pragma once
// Element types as plain data, so that the plan and the checkpoint format need no tensors.

#include <concepts>
#include <cstdint>
#include <optional>
#include <string_view>

namespace zero {

enum class Dtype : uint8_t { f32, bf16, f16, f64, f8_e4m3, f8_e5m2, i64, i32, i16, i8, u8, boolean };

/// Size of one element in bytes.
int64_t itemsize(Dtype dtype);

/// True for the types that can carry a gradient.
bool is_floating(Dtype dtype);

/// safetensors' name: "F32", "BF16", "F16", "F64", "F8_E4M3", "F8_E5M2", "I64", "I32", "I16", "I8", "U8",
/// "BOOL".
std::string_view safetensors_name(Dtype dtype);

/// The type of that safetensors name; nothing for an unknown one.
std::optional<Dtype> dtype_from_safetensors(std::string_view name);

/// "fp32", "bf16", "fp16", "fp64", ... as the configuration spells them.
std::string_view to_string(Dtype dtype);

/// What another library calls a type: `static Dtype of(Word)`. zero/torch_dtype.h has LibTorch's.
template <class Word>
struct DtypeWord;

/// A Dtype that may be given in another library's words: EngineOptions{.dtype = torch::kBFloat16}.
class DtypeOption {
 public:
  constexpr DtypeOption(Dtype dtype) : dtype_(dtype) {}  // NOLINT(google-explicit-constructor)
  template <class Word>
  requires requires(Word word) {
    { DtypeWord<Word>::of(word) } -> std::same_as<Dtype>;
  }
  DtypeOption(Word word) : dtype_(DtypeWord<Word>::of(word)) {}  // NOLINT(google-explicit-constructor)

  constexpr operator Dtype() const { return dtype_; }  // NOLINT(google-explicit-constructor)
  friend constexpr bool operator==(DtypeOption a, DtypeOption b) { return a.dtype_ == b.dtype_; }
  friend constexpr bool operator==(DtypeOption a, Dtype b) { return a.dtype_ == b; }

 private:
  Dtype dtype_;
};

}  // namespace zero
