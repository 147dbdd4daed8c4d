// zero consolidate CHECKPOINT OUT
#include "zero/consolidate.h"

#include <iostream>

#include "verbs.h"
#include "zero/load_model.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

struct ConsolidateArguments {
  std::string checkpoint, out, format = "safetensors", dtype, most = "5GB", tokenizer, from;
  bool merge_adapters = false;
};

std::optional<Dtype> dtype_named(const std::string& name) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
    if (name == to_string(dtype)) return dtype;
  return std::nullopt;
}

void print(const std::string& out, const Consolidated& made) {
  std::cout << out << ": step " << made.step << ", " << made.tensors << " tensors, "
            << human_bytes(made.bytes)
            << (made.is_model ? "" : "; weights alone: the checkpoint holds no configuration") << "\n";
  for (const std::string& file : made.files) std::cout << "  " << file << "\n";
}

}  // namespace

int run_consolidate(int argc, char** argv) {
  ConsolidateArguments arguments;
  CLI::App app(
      "zero consolidate CHECKPOINT OUT\n"
      "Makes a model directory that transformers opens (config.json, tokenizer, weights) from a checkpoint "
      "of\n"
      "any number of ranks. Needs no more memory for a larger model.");
  app.add_option("checkpoint", arguments.checkpoint, "a checkpoint, or a run directory: its newest")
      ->required();
  app.add_option("out", arguments.out, "directory to make; must be absent or empty")->required();
  app.add_option("-f,--format", arguments.format, "safetensors, or pytorch: .bin files [safetensors]")
      ->check(CLI::IsMember({"safetensors", "pytorch"}));
  app.add_option("--dtype", arguments.dtype, "fp32, bf16 or fp16 [as stored: fp32 where it was trained]")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--max-shard-size", arguments.most, "bytes of tensors in one file: 2GB, 500MiB [5GB]");
  const auto* tokenizer = app.add_option("--tokenizer", arguments.tokenizer,
                                         "directory of the tokenizer, \"\" for none [the run's]");
  const auto* from = app.add_option("--from", arguments.from,
                                    "model directory with what --trainable-only left out [the run's]");
  app.add_flag("--merge-adapters", arguments.merge_adapters,
               "make low-rank adapters part of the weights they belong to");
  if (!parse(app, argc, argv)) return 0;

  ConsolidateOptions options;
  options.merge_adapters = arguments.merge_adapters;
  if (arguments.format == "pytorch") options.format = ConsolidateOptions::Format::Pytorch;
  options.dtype = dtype_named(arguments.dtype);
  options.most_file_bytes = parse_bytes(arguments.most, "--max-shard-size");
  if (tokenizer->count() > 0) options.tokenizer = arguments.tokenizer;
  if (from->count() > 0) options.from = arguments.from;
  print(arguments.out, consolidate(find_checkpoint(arguments.checkpoint), arguments.out, options));
  return 0;
}

}  // namespace zero::tool
