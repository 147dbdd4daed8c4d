// Fine-tunes a model directory of Hugging Face's on a text and makes a model directory of the result:
//   example_finetune MODEL TEXT OUT
// On two ranks: zero launch --ranks 2 -- example_finetune MODEL TEXT OUT
#include <zero/zero.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace fs = std::filesystem;

// What `zero train` would read from a file.
zero::Config configuration(const fs::path& model, const fs::path& work, int ranks) {
  const nlohmann::json json = {
      {"train_batch_size", 8},
      {"zero_optimization", {{"stage", 3}}},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 2e-3}}}}},
      {"model", {{"from", model.string()}}},
      {"data",
       {{"train", (work / "train.tokens").string()}, {"tokenizer", model.string()}, {"sequence_length", 32}}},
      {"run", {{"directory", (work / "run").string()}, {"steps", 40}}}};
  return zero::resolve(zero::adopt_model(zero::parse_config(json.dump(), "example")), ranks);
}

double loss_on(const zero::SavedModel& model, const fs::path& tokens, const zero::Mesh& mesh) {
  zero::Inference inference(model, mesh);
  return inference.evaluate(zero::TokenFile::open(tokens), {.sequence_length = 32, .batch_size = 4}).loss;
}

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: example_finetune MODEL TEXT OUT");
  const fs::path model = argv[1], text = argv[2], out = argv[3], work = out.string() + ".work";
  auto mesh = zero::Mesh::from_environment();
  if (mesh.rank() == 0) {
    fs::create_directories(work);
    zero::tokenize_files({text}, zero::Tokenizer::load(model), work / "train.tokens");
  }
  mesh.world().barrier("token files");

  const double before = loss_on(zero::find_model(model), work / "train.tokens", mesh);
  const zero::Config config = configuration(model, work, mesh.size());
  const zero::TrainResult trained =
      zero::train(config, mesh, {.overwrite = true, .progress = mesh.rank() == 0 ? stdout : nullptr});
  const double after = loss_on(zero::find_model(trained.checkpoint), work / "train.tokens", mesh);

  if (mesh.rank() == 0) {
    std::printf("loss on the text %.3f, before %.3f\n", after, before);
    zero::consolidate(trained.checkpoint, out);
    std::printf("made %s\n", out.c_str());
  }
  if (!(after < before)) throw std::runtime_error("the model did not get better");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
