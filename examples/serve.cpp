// Text from a trained model: a run directory, a checkpoint, or a model directory of Hugging Face's.
//   example_serve MODEL PROMPT...      each prompt and what follows it
//   example_serve MODEL                the same for each line of standard input
// On several ranks each holds a part of the model: zero launch --ranks 2 -- example_serve MODEL PROMPT...
#include <zero/zero.h>

#include <cstdio>
#include <iostream>

class Server {
 public:
  Server(const std::filesystem::path& model, const zero::Mesh& mesh)
      : saved_(zero::find_model(model)),
        tokenizer_(zero::Tokenizer::load(saved_.config.data.tokenizer)),
        inference_(saved_, mesh) {
    options_.max_new_tokens = 40;
    options_.temperature = 0.8;
    options_.top_k = 40;
    options_.stop_tokens = saved_.end_tokens;
    if (const auto end = tokenizer_.end_of_text()) options_.stop_tokens.push_back(*end);
  }

  /// All ranks call it with the same prompt and get the same text.
  std::string answer(const std::string& prompt) {
    const auto ids = tokenizer_.encode_with_specials(prompt, "prompt");
    const auto made = inference_.generate(std::vector<int64_t>(ids.begin(), ids.end()), options_);
    return tokenizer_.decode(std::vector<int32_t>(made.begin(), made.end()));
  }

 private:
  zero::SavedModel saved_;
  zero::Tokenizer tokenizer_;
  zero::Inference inference_;
  zero::GenerateOptions options_;
};

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: example_serve MODEL [PROMPT...]");
  auto mesh = zero::Mesh::from_environment();
  if (argc == 2 && mesh.size() > 1) throw std::runtime_error("give prompts: one rank alone reads lines");
  Server server(argv[1], mesh);
  const auto print = [&](const std::string& prompt) {
    const std::string text = server.answer(prompt);
    if (mesh.rank() == 0) std::cout << prompt << text << std::endl;
  };
  for (int i = 2; i < argc; ++i) print(argv[i]);
  for (std::string line; argc == 2 && std::getline(std::cin, line);)
    if (!line.empty()) print(line);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
