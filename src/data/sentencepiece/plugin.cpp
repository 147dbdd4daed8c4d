#include "data/sentencepiece/plugin.h"

#include <sentencepiece_processor.h>

namespace zero::data {
namespace {

class Model : public SentencePieceModel {
 public:
  std::string load(std::string_view bytes) {
    const auto status = processor_.LoadFromSerializedProto(bytes);
    return status.ok() ? "" : status.ToString();
  }

  int size() const override { return processor_.GetPieceSize(); }

  Kind kind(int id) const override {
    if (processor_.IsControl(id)) return Kind::Control;
    if (processor_.IsUnknown(id)) return Kind::Unknown;
    return processor_.IsByte(id) ? Kind::Byte : Kind::Text;
  }

  std::string piece(int id) const override { return processor_.IdToPiece(id); }

  std::string encode(std::string_view text, std::vector<int>& ids) const override {
    std::vector<int> found;
    const auto status = processor_.Encode(text, &found);
    ids.insert(ids.end(), found.begin(), found.end());
    return status.ok() ? "" : status.ToString();
  }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace
}  // namespace zero::data

extern "C" __attribute__((visibility("default"))) void zero_sentencepiece_model_1(
    const std::string_view* bytes, std::unique_ptr<zero::data::SentencePieceModel>* model,
    std::string* problem) {
  auto made = std::make_unique<zero::data::Model>();
  *problem = made->load(*bytes);
  if (problem->empty()) *model = std::move(made);
}
