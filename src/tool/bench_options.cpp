#include "bench_options.h"

#include <set>

#include "device.h"
#include "pipeline/schedules.h"
#include "verbs.h"
#include "zero/cpu_operators.h"
#include "zero/error.h"

namespace zero::tool {

void add_bench_options(CLI::App& step, BenchArguments& arguments) {
  arguments.operators = CpuOperators::exist() ? kOurs : kOnLibTorch;
  step.add_option("--model", arguments.model, "tiny or a name of the configuration's model.size")
      ->capture_default_str();
  step.add_option("--stage", arguments.stage, "ZeRO stage")
      ->check(CLI::Range(0, kStages - 1))
      ->capture_default_str();
  step.add_option("-n,--ranks", arguments.ranks, "ranks on this host")
      ->check(at_least_one())
      ->capture_default_str();
  step.add_option("--tensor", arguments.tensor, "ranks that share each layer; the others along \"dp\"")
      ->check(at_least_one())
      ->capture_default_str();
  step.add_flag("--sequence", arguments.cuts_sequence,
                "cut the sequence between the parts of a layer, too, where ranks share layers");
  step.add_option("--pipeline", arguments.pipeline,
                  "ranks of a pipeline, which --grad-accum micro-batches go through")
      ->check(at_least_one())
      ->capture_default_str();
  step.add_option("--schedule", arguments.schedule, "of the pipeline; `zero pipeline` names them")
      ->capture_default_str();
  step.add_option("--chunks", arguments.chunks, "stages of a rank under the schedule interleaved")
      ->check(at_least_one())
      ->capture_default_str();
  step.add_option("--threads", arguments.threads, "compute threads of a rank [cores / ranks]")
      ->check(at_least_one());
  step.add_option("--batch", arguments.batch, "sequences in a micro-batch")
      ->check(at_least_one())
      ->capture_default_str();
  step.add_option("--seq", arguments.sequence, "tokens in a sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  step.add_option("--steps", arguments.steps, "steps, the warm-up among them")
      ->check(at_least_one())
      ->capture_default_str();
  step.add_option("--warmup", arguments.warmup, "steps that are not timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  step.add_option("--grad-accum", arguments.accumulation, "micro-batches per step")
      ->check(at_least_one())
      ->capture_default_str();
  step.add_option("--dtype", arguments.dtype, "of parameters and computation")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  step.add_option("--backend", arguments.backend, "auto, shm, gloo or nccl")->capture_default_str();
  step.add_option("--communication", arguments.communication, "how gradients are summed: fast is NCCL's")
      ->check(CLI::IsMember({"exact", "fast"}))
      ->capture_default_str();
  step.add_option("--bucket", arguments.bucket_numel, "elements of a gradient bucket")->check(at_least_one());
  step.add_option("--seed", arguments.seed, "of weights and tokens")->capture_default_str();
  step.add_flag("--plain", arguments.plain, "GPT-2 from torch::nn modules instead of ours");
  step.add_option("--operators", arguments.operators,
                  "whose operators the engine computes with: ours, or libtorch's own")
      ->check(CLI::IsMember({kOurs, kOnLibTorch}))
      ->capture_default_str();
  step.add_flag("--alone", arguments.alone, "forward and backward only: no engine, gradients thrown away");
  step.add_option(
          "--beside", arguments.beside,
          "after every step, time another one in turn: alone (forward and backward only), libtorch (the same "
          "stage on LibTorch's operators), memory (the same stage with all states in memory), kept (with "
          "nothing recomputed) or a stage; more memory, but one run")
      ->delimiter(',')
      ->check(CLI::IsMember({kAlone, kOnLibTorch, kInMemory, kKeepingAll, "0", "1", "2", "3"}))
      ->excludes("--alone");
  step.add_option("--offload", arguments.offload,
                  "where states are while nobody uses them; disk on CPU: gradients too, and parameters at "
                  "stage 3")
      ->check(CLI::IsMember({"none", "host", "disk"}))
      ->excludes("--alone")
      ->capture_default_str();
  step.add_option("--offload-parts", arguments.offload_parts,
                  "of them: parameters, gradients, states (masters and the optimizer's)")
      ->delimiter(',')
      ->check(CLI::IsMember({kParameterPart, kGradientPart, kStatePart}));
  step.add_option("--path", arguments.disk_path, "directory on a disk, for --offload disk")
      ->default_val(".")
      ->capture_default_str();
  step.add_option("--memory", arguments.budget_bytes,
                  "of a rank at its peak, by the plan: states that do not fit go to the disk of --path")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::PositiveNumber)
      ->excludes("--alone")
      ->excludes("--offload");
  step.add_option("--buffers", arguments.disk_buffers, "pieces of states on disk in memory at a time")
      ->check(CLI::Range(2, 1024));
  step.add_option("--step-in-backward", arguments.ahead,
                  "whether units on disk are updated while backward goes on; auto: where nothing is clipped")
      ->check(CLI::IsMember({"auto", "on", "in_place", "off"}))
      ->capture_default_str();
  step.add_option("--clipping", arguments.clipping, "norm at which gradients are clipped; 0: not at all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  step.add_option("--recompute", arguments.recompute,
                  "blocks that are computed again in backward; auto: as few as --recompute-memory allows")
      ->check(CLI::IsMember({"none", "all", "auto"}))
      ->capture_default_str();
  step.add_option("--recompute-memory", arguments.memory_bytes, "bytes that the blocks of a rank may keep")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  step.add_flag("--private", arguments.private_parameters, "ranks keep gathered parameters of their own");
  step.add_flag("--bind", arguments.bind, "keep each rank on its part of the cores");
  step.add_flag("--malloc", arguments.plain_allocator, "the C library's allocator instead of ours");
  step.add_option("--trace", arguments.trace, "write a timeline of all ranks to this file");
  step.add_option("--device", arguments.device, kDeviceHelp)->capture_default_str();
  step.add_flag("--json", arguments.json, "one line of JSON");
}

namespace {

void check_mesh(const BenchArguments& arguments) {
  const int together = arguments.tensor * arguments.pipeline;
  require(arguments.ranks % together == 0, ErrorKind::Config, "--ranks",
          std::to_string(arguments.ranks) + " ranks, expected a multiple of the " + std::to_string(together) +
              " that --tensor and --pipeline ask for");
  require(!arguments.cuts_sequence || arguments.tensor > 1, ErrorKind::Config, "--sequence",
          "no ranks share layers", "give --tensor, too");
  pipeline::kind_from(arguments.schedule);
  if (together == 1) return;
  const int64_t heads = bench_shape(arguments.model).heads;
  require(heads % arguments.tensor == 0, ErrorKind::Config, "--tensor",
          std::to_string(arguments.tensor) + " ranks cannot share " + std::to_string(heads) + " heads",
          "give a number that divides them");
  for (const auto& [option, given] :
       {std::pair{"--alone", arguments.alone}, std::pair{"--beside", !arguments.beside.empty()},
        std::pair{"--memory", arguments.budget_bytes > 0}})
    require(!given, ErrorKind::Config, option,
            "ranks that share layers or a pipeline are timed by themselves",
            "leave it or --tensor and --pipeline out");
}

}  // namespace

void check_bench(const BenchArguments& arguments) {
  require(arguments.warmup < arguments.steps, ErrorKind::Config, "--warmup",
          "expected fewer than the " + std::to_string(arguments.steps) + " steps");
  require(std::set(arguments.beside.begin(), arguments.beside.end()).size() == arguments.beside.size(),
          ErrorKind::Config, "--beside", "each may be named once");
  recompute_of(arguments);
  check_mesh(arguments);
  require(arguments.operators == kOnLibTorch || CpuOperators::exist(), ErrorKind::Unsupported, "--operators",
          "zero was built without operators of its own", "build it with ZERO_CPU_OPERATORS=ON");
}

}  // namespace zero::tool
