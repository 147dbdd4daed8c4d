// Headers of safetensors files: those of our checkpoints and of others' models. The first two bytes choose
// how many bytes of data follow the header.
#include "checkpoint/safetensors.h"
#include "fuzz.h"
#include "hf/safetensors.h"

namespace {

void read_headers(std::string_view input) {
  using namespace zero;
  if (input.size() < 2) return;
  const auto data_bytes =
      static_cast<unsigned char>(input[0]) + 256 * (static_cast<unsigned char>(input[1]) % 16);
  const std::string_view text = input.substr(2);
  fuzz::attempt([&] {
    const checkpoint::Header header = checkpoint::parse_header(text, data_bytes, "fuzz");
    int64_t bytes = 0;
    for (const auto& [name, tensor] : header.tensors) bytes += tensor.numel * itemsize(tensor.dtype);
    fuzz::check(bytes == data_bytes);
  });

  // The whole file, its length as it should be and as the input says.
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(text.size() >> (8 * i) & 0xff);
  file.append(text).append(static_cast<size_t>(data_bytes), '\0');
  for (const std::string_view bytes : {std::string_view(file), text})
    fuzz::attempt([&] {
      const hf::SafetensorsFile opened(fuzz::in_file(bytes));
      for (const auto& [name, tensor] : opened.tensors()) {
        std::vector<std::byte> data(static_cast<size_t>(tensor.numel * itemsize(tensor.dtype)));
        opened.read_at(tensor.begin_byte, data);
      }
    });
}

}  // namespace

ZERO_FUZZ(read_headers)
