// Every kind of bad input, with the whole message: place, key, expected, got, remedy.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "support/config_text.h"

namespace zero {
namespace {

using test::error_of;
using test::parse;

ErrorKind kind_of(std::string_view text) {
  try {
    parse_config(text, "f");
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "accepted: " << text;
  return ErrorKind::Internal;
}

TEST(ConfigErrors, UnknownKeysNameTheNearestOne) {
  EXPECT_EQ(error_of("{\n \"zero_optimization\": {\n  \"stag\": 2}}"),
            "config error: f:3: zero_optimization.stag: expected a known key, got \"stag\"; did you mean "
            "\"stage\"?");
  EXPECT_EQ(
      error_of("{\"train_bacth_size\": 8}"),
      "config error: f:1: train_bacth_size: expected a known key, got \"train_bacth_size\"; did you mean "
      "\"train_batch_size\"?");
  EXPECT_EQ(error_of("{\"activation_checkpointing\": {\n\"partitioned_activations\": false}}"),
            "config error: f:2: activation_checkpointing.partitioned_activations: expected a known key, got "
            "\"partitioned_activations\"; did you mean \"partition_activations\"?");
  EXPECT_EQ(error_of("{\"zero_optimization\": {\"grad_hooks\": true}}")
                .find("config error: f:1: zero_optimization.grad_hooks: expected a known key"),
            0u);
  EXPECT_EQ(error_of("{\"fp16\": {\"enabled\": false, \"loss_scal\": 0}}"),
            "config error: f:1: fp16.loss_scal: expected a known key, got \"loss_scal\"; did you mean "
            "\"loss_scale\"?");
  EXPECT_EQ(error_of("{\"parameter_groups\": [{\"pattern\": \"a\"},\n{\"patern\": \"b\"}]}")
                .find("config error: f:2: parameter_groups[1].patern: expected a known key, got \"patern\"; "
                      "did you mean "
                      "\"pattern\"?"),
            0u);
}

TEST(ConfigErrors, KeysInTheWrongSectionAreRecognised) {
  EXPECT_EQ(error_of("{\n\"overlap_comm\": true}"),
            "config error: f:2: overlap_comm: expected a known key, got \"overlap_comm\"; did you mean "
            "\"zero_optimization.overlap_comm\"?");
  EXPECT_EQ(error_of("{\"optimizer\": {\"lr\": 1}}"),
            "config error: f:1: optimizer.lr: expected a known key, got \"lr\"; did you mean "
            "\"optimizer.params.lr\"?");
}

TEST(ConfigErrors, WholeKeysAreCompared) {
  EXPECT_EQ(
      error_of("{\"logging\": {\"steps_per_print\": 1}}"),
      "config error: f:1: logging.steps_per_print: expected a known key, got \"steps_per_print\"; it stands "
      "outside of \"logging\"");
  EXPECT_EQ(error_of("{\"optimizer\": {\"params\": {\"max_grad_norm\": 1}}}"),
            "config error: f:1: optimizer.params.max_grad_norm: expected a known key, got \"max_grad_norm\"; "
            "docs/configuration.md has all keys");
  // Of another section's key only the last word is like this one.
  EXPECT_EQ(
      error_of("{\"logging\": {\"stag\": 1}}"),
      "config error: f:1: logging.stag: expected a known key, got \"stag\"; docs/configuration.md has all "
      "keys");
  EXPECT_EQ(
      error_of("{\"residensy.split_master\": 1}"),
      "config error: f:1: residensy.split_master: expected a known key, got \"residensy.split_master\"; "
      "did you mean \"residency.split_master\"?");
}

TEST(ConfigErrors, ParametersOfAnotherTypeAreUnknown) {
  EXPECT_EQ(
      error_of("{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentun\": 0.9}}}"),
      "config error: f:1: optimizer.params.momentun: expected a known key, got \"momentun\"; did you mean "
      "\"momentum\"?");
  EXPECT_NE(error_of("{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"betas\": [0.9, 0.99]}}}"), "");
  // The type decides wherever it stands.
  EXPECT_EQ(error_of("{\"optimizer\": {\"params\": {\"momentum\": 0.9}, \"type\": \"SGD\"}}"), "");
  EXPECT_NE(error_of("{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 9}}}"), "");
}

TEST(ConfigErrors, WrongTypesAndRanges) {
  const auto zero = [](const std::string& body) { return "{\n\n\"zero_optimization\": {" + body + "}}"; };
  EXPECT_EQ(error_of(zero("\"stage\": 7")),
            "config error: f:3: zero_optimization.stage: expected an integer from 0 to 3, got 7");
  EXPECT_EQ(error_of(zero("\"stage\": -1")),
            "config error: f:3: zero_optimization.stage: expected an integer from 0 to 3, got -1");
  EXPECT_EQ(error_of(zero("\"stage\": 1.5")),
            "config error: f:3: zero_optimization.stage: expected an integer from 0 to 3, got 1.5");
  EXPECT_EQ(error_of(zero("\"stage\": \"4\"")),
            "config error: f:3: zero_optimization.stage: expected an integer from 0 to 3, got \"4\"");
  EXPECT_EQ(error_of(zero("\"stage\": \"3 \"")),
            "config error: f:3: zero_optimization.stage: expected an integer from 0 to 3, got \"3 \"");
  EXPECT_EQ(error_of(zero("\"stage\": null")),
            "config error: f:3: zero_optimization.stage: expected an integer from 0 to 3, got null");
  EXPECT_EQ(error_of(zero("\"overlap_comm\": 1")),
            "config error: f:3: zero_optimization.overlap_comm: expected true or false or null, got 1");
  EXPECT_EQ(error_of(zero("\"reduce_bucket_size\": 0")),
            "config error: f:3: zero_optimization.reduce_bucket_size: expected an integer >= 1, got 0");
  EXPECT_EQ(error_of("{\"zero_optimization\": 3}"),
            "config error: f:1: zero_optimization: expected an object, got 3");
  EXPECT_EQ(error_of("{\"gradient_clipping\": -0.5}"),
            "config error: f:1: gradient_clipping: expected a number >= 0, got -0.5");
  EXPECT_EQ(error_of("{\"frozen\": [\"wte.*\", \"\"]}"),
            "config error: f:1: frozen: expected a list of globs, as \"*.bias\" or \"h.[0-3].*\", got an "
            "array of 2");
  EXPECT_EQ(error_of("{\"optimizer\": {\"params\": {\"betas\": [0.9, 1.0]}}}"),
            "config error: f:1: optimizer.params.betas: expected a list of two numbers >= 0 and < 1, got an "
            "array of 2");
  EXPECT_EQ(error_of("{\"residency\": {\"budget\": \"12 potatoes\"}}"),
            "config error: f:1: residency.budget: expected bytes >= 0, as a number, \"512MiB\" or \"all\" or "
            "null, got "
            "\"12 potatoes\"");
  EXPECT_EQ(
      error_of("{\"parallel\": {\"backend\": \"ncccl\"}}"),
      "config error: f:1: parallel.backend: expected \"auto\", \"shm\", \"gloo\" or \"nccl\", got \"ncccl\"; "
      "did you mean "
      "\"nccl\"?");
  EXPECT_EQ(error_of("{\"parameter_groups\": {\"pattern\": \"a\"}}"),
            "config error: f:1: parameter_groups: expected a list of objects, got an object");
  EXPECT_EQ(error_of("[]"), "config error: f:1: expected an object, got an array of 0");
}

TEST(ConfigErrors, NumbersThatAreNone) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "0x10", "01", "1.", ".5", "+1"}) {
    const std::string error = error_of("{\n\"gradient_clipping\": " + std::string(number) + "}");
    EXPECT_EQ(error.find("config error: f:2: expected JSON, got a syntax error"), 0u)
        << number << ": " << error;
  }
  EXPECT_EQ(error_of("{\n\"gradient_clipping\": 1e999}"),
            "config error: f:2: expected JSON, got a number overflow parsing '1e999'");
  EXPECT_EQ(error_of("{\"train_batch_size\": 99999999999999999999}"),
            "config error: f:1: train_batch_size: expected an integer from 1 to 1073741824 or null, got "
            "99999999999999999999");
  EXPECT_EQ(
      error_of("{}", {"gradient_clipping=nan"}),
      "config error: --set gradient_clipping=nan: gradient_clipping: expected a number >= 0, got \"nan\"");
}

TEST(ConfigErrors, OffloadIsCheckedBeforeAnythingStarts) {
  EXPECT_EQ(error_of(R"({"offload": {"ratio": 1.5}})"),
            "config error: f:1: offload.ratio: expected a number from 0 to 1, got 1.5");
  EXPECT_EQ(
      error_of(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": -0.1}}})"),
      "config error: f:1: zero_optimization.offload_optimizer.ratio: expected a number from 0 to 1, got "
      "-0.1");
  EXPECT_EQ(error_of("{\"zero_optimization\": {\"offload_optimizer\":\n{\"device\": \"nvme\"}}}"),
            "config error: f:2: offload.optimizer: expected \"none\" or \"host\" without offload.path, got "
            "\"disk\"; "
            "let offload.path name an existing directory on a disk, which you may write to");
  EXPECT_EQ(error_of(R"({"aio": {"block_size": 5000}})"),
            "config error: f:1: offload.block_bytes: expected a multiple of 4096, got 5000");
  EXPECT_NE(
      error_of(
          R"({"offload": {"path": "/a"}, "zero_optimization": {"offload_optimizer": {"nvme_path": "/b"}}})")
          .find("got both"),
      std::string::npos);
}

TEST(ConfigErrors, PlacementsThatContradictAreRefused) {
  EXPECT_EQ(
      error_of("{\"zero_optimization\": {\n\"offload_param\": {\n\"device\": \"cpu\"}}}"),
      "config error: f:3: offload.parameter: expected \"none\" at stage 0, where every rank computes with "
      "all of them, got \"host\"; set zero_optimization.stage to 3");
  EXPECT_EQ(
      error_of(R"({"offload": {"optimizer": "auto"}})"),
      "config error: f:1: offload.memory: expected bytes with \"auto\", got null; say what memory a rank "
      "may take, or where each kind is to be");
  EXPECT_EQ(
      error_of(R"({"offload": {"optimizer": "auto", "memory": "1GiB", "ratio": 0.3}})"),
      "config error: f:1: offload.ratio: expected 1 where offload.optimizer is \"auto\", which finds the "
      "share itself, got 0.300000; remove it, or say where offload.optimizer is to be");
  EXPECT_EQ(error_of(R"({"offload": {"memory": "1GiB"}})"),
            "config error: f:1: offload.memory: expected null where no kind is \"auto\", got 1073741824; let "
            "offload.optimizer be \"auto\"");
  EXPECT_EQ(error_of(R"({"offload": {"gradient": "disk"}})"),
            "config error: f:1: offload.gradient: expected \"none\" or \"host\" without offload.path, got "
            "\"disk\"; let offload.path name an existing directory on a disk, which you may write to");
  EXPECT_EQ(error_of(R"({"gemini": {"offload_param_frac": 0.5}, "zero_optimization": {"stage": 3}})"),
            "config error: f:1: gemini.offload_param_frac: expected 0 unless shard_param_frac and "
            "offload_optim_frac are 1, got 0.500000; set both to 1, or use offload.parameter");
  EXPECT_EQ(error_of(R"({"gemini": {"shard_param_frac": 0.5}, "zero_optimization": {"stage": 2}})"),
            "config error: f:1: gemini.shard_param_frac: expected 1 below stage 3, which alone shards "
            "parameters, got 0.500000; set zero_optimization.stage to 3");
  EXPECT_EQ(error_of(R"({"gemini": {"offload_optim_frac": 1.5}})"),
            "config error: f:1: gemini.offload_optim_frac: expected a number from 0 to 1, got 1.5");
  EXPECT_EQ(error_of(R"({"offload": {"optimizer": "host"}, "gemini": {"tensor_placement_policy": "cuda"}})"),
            "config error: f:1: gemini.tensor_placement_policy: expected this or offload.optimizer, got both "
            "(f:1); remove one of the two");
  EXPECT_EQ(
      error_of(R"({"zero_optimization": {"stage": 3,
"offload_param": {"device": "nvme", "nvme_path": "/a"},
"offload_optimizer": {"device": "nvme", "nvme_path": "/b"}}})"),
      "config error: f:3: zero_optimization.offload_optimizer.nvme_path: expected \"/a\" as in "
      "zero_optimization.offload_param.nvme_path, got \"/b\"; give both the same value, or one of them");
}

TEST(ConfigErrors, WhatThisVersionDoesNotDoIsUnsupported) {
  const char* texts[] = {
      R"({"zero_optimization": {"offload_optimizer": {"super_offload": true}}})",
      R"({"zero_optimization": {"zero_quantized_weights": true}})",
      R"({"zero_optimization": {"zenflow": {}}})",
      R"({"zero_optimization": {"round_robin_gradients": true}})",
      R"({"amp": {"enabled": true}})",
      R"({"gradient_allreduce_op": "sum"})",
      R"({"managed_gradient_accumulation": false})",
      R"({"comet": {"enabled": true}})",
      R"({"tensor_parallel": {"tp_overlap_comm": true}})",
      R"({"elasticity": {"enabled": true}})",
      R"({"autotuning": {"enabled": true, "whatever": 1}})",
      R"({"compression_training": {"weight_quantization": {}}})",
      R"({"optimizer": {"type": "OneBitLamb"}})",
      R"({"optimizer": {"params": {"amsgrad": true}}})",
      R"({"optimizer": {"type": "OneBitAdam"}})",
  };
  for (const char* text : texts) EXPECT_EQ(kind_of(text), ErrorKind::Unsupported) << text;
  EXPECT_EQ(
      error_of("{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\n\"amsgrad\": true}}}"),
      "unsupported error: f:2: optimizer.params.amsgrad: expected false, got true; this version does not do "
      "optimizer.params.amsgrad = true: give what is expected, or remove the key");
  EXPECT_EQ(
      error_of(R"({"comet": {"enabled": true, "project": "p", "api_key": "k", "samples_log_interval": 9}})"),
      "unsupported error: f:1: comet.enabled: expected false, got true; this version does not do "
      "comet.enabled = true: write tensorboard, csv_monitor or wandb with enabled: true in its place, or "
      "remove the key");
  // A wrong type is not a feature request.
  EXPECT_EQ(kind_of(R"({"fp16": {"enabled": 1}})"), ErrorKind::Config);
  EXPECT_EQ(kind_of(R"({"fp16": true})"), ErrorKind::Config);
}

TEST(ConfigErrors, Recomputation) {
  const std::string begin = "{\"activation_checkpointing\": {\n", end = "}}";
  const std::string place = "config error: f:2: activation_checkpointing.";
  EXPECT_EQ(error_of(begin + "\"recompute\": \"some\"" + end),
            place +
                "recompute: expected \"none\", \"all\" or \"auto\" or an integer >= 1, got \"some\"; did you "
                "mean \"none\"?");
  EXPECT_EQ(error_of(begin + "\"recompute\": 0" + end),
            place + "recompute: expected \"none\", \"all\" or \"auto\" or an integer >= 1, got 0");
  EXPECT_EQ(error_of(begin + "\"memory\": \"1GiB\"" + end),
            place + "memory: expected null unless recompute is \"auto\", got 1073741824");
  EXPECT_NE(error_of(begin + "\"offload\": \"auto\"" + end).find("unless recompute is \"auto\""),
            std::string::npos);
  EXPECT_NE(error_of(begin + "\"offload\": \"disk\"" + end)
                .find("expected \"none\" or \"host\" without a directory"),
            std::string::npos);
  EXPECT_EQ(error_of(begin + "\"cpu_checkpointing\": true" + end),
            place +
                "cpu_checkpointing: expected false where nothing is recomputed, got true; set "
                "activation_checkpointing.recompute");
  EXPECT_EQ(error_of(begin + "\"partition_activations\": true}, \"parallel\": {\"tensor\": 2" + end),
            place +
                "partition_activations: expected false where nothing is recomputed, got true; set "
                "activation_checkpointing.recompute");
}

TEST(ConfigErrors, Contradictions) {
  EXPECT_EQ(error_of("{\"model\": {\"width\": 100,\n\"heads\": 3}}"),
            "config error: f:2: model.heads: expected a divisor of model.width 100, got 3");
  EXPECT_EQ(error_of("{\"model\": {\n\"width\": 100}}"),
            "config error: f:1: model.heads: expected a divisor of model.width 100, got 12");
  EXPECT_EQ(error_of("{\"data\": {\n\"sequence_length\": 2048}}"),
            "config error: f:2: data.sequence_length: expected at most model.context_length 1024, got 2048");
  EXPECT_EQ(error_of(R"({"bf16": {"enabled": true}, "data_types": {"param_dtype": "fp32"}})"),
            "config error: f:1: data_types.param_dtype: expected bf16 with bf16.enabled true and "
            "fp16.enabled false, got fp32; change one of them");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})"),
            "config error: f:1: optimizer.params.adam_w_mode: expected true with type AdamW, got false; "
            "write type Adam "
            "for weight decay inside the gradient");
  EXPECT_NE(error_of(R"({"optimizer": {"type": "SGD", "params": {"nesterov": true}}})"), "");
  EXPECT_NE(
      error_of(
          R"({"optimizer": {"type": "SGD", "params": {"nesterov": true, "momentum": 0.9, "dampening": 0.1}}})"),
      "");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "SGD", "params": {"nesterov": true, "momentum": 0.9}}})"), "");
  EXPECT_EQ(error_of(R"({"optimizer": {"type": "LAMB", "params": {"max_coeff": 0.001}}})"),
            "config error: f:1: optimizer.params.min_coeff: expected at most max_coeff, got above max_coeff");
  EXPECT_NE(error_of(R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1}}})"), "");
  EXPECT_NE(
      error_of(R"({"scheduler": {"type": "Cosine", "params": {"warmup_steps": 20, "total_steps": 10}}})"),
      "");
  EXPECT_NE(error_of(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10}}})"), "");
  EXPECT_NE(error_of(R"({"parameter_groups": [{"pattern": "a", "lr": 1, "lr_scale": 2}]})"), "");
  EXPECT_EQ(error_of("{\"parameter_groups\": [\n{\"lr\": 1}]}"),
            "config error: f:2: parameter_groups[0].pattern: expected a glob over parameter names, got none");
  EXPECT_EQ(error_of("{\"parameter_groups\": [\n{\"pattern\": \"h.[0-3\"}]}"),
            "config error: f:2: parameter_groups[0].pattern: expected a glob, as \"*.bias\" or "
            "\"h.[0-3].*\", got \"h.[0-3\"");
  EXPECT_EQ(error_of(R"({"parallel": {"shard_group": 2}})"),
            "config error: f:1: parallel.shard_group: expected null at stage 0, which shards nothing, got 2");
  for (const char* backend : {"shm", "gloo"})
    EXPECT_EQ(
        error_of(R"({"parallel": {"communication": "fast", "backend": ")" + std::string(backend) + "\"}}"),
        "config error: f:1: parallel.communication: expected exact with parallel.backend shm and gloo, "
        "which add in rank order, got \"fast\"; set one of the two to what the other needs");
  EXPECT_EQ(error_of(R"({"parallel": {"communication": "fast", "backend": "nccl"}})"), "");
  EXPECT_NE(error_of(R"({"parallel": {"communication": "quick"}})"), "");
  EXPECT_EQ(error_of(R"({"cuda": {"memory": 0}})"),
            "config error: f:1: cuda.memory: expected more than 0 bytes, or null for all, got 0");
  EXPECT_NE(error_of(R"({"zero_optimization": {"stage": 3}, "parallel": {"shard_group": 3, "ranks": 4}})"),
            "");
  EXPECT_NE(error_of(R"({"checkpoint": {"directory": "/etc"}})"), "");
  EXPECT_NE(error_of(R"({"checkpoint": {"directory": "a/../../b"}})"), "");
  EXPECT_EQ(error_of(R"({"checkpoint": {"directory": "a/../b"}})"), "");
  EXPECT_NE(error_of(R"({"run": {"eval_interval_steps": 5}})"), "");
}

TEST(ConfigErrors, TheSameThingTwice) {
  EXPECT_EQ(error_of("{\"bf16\": {\n\"enabled\": true,\n\"enabled\": false}}"),
            "config error: f:3: bf16.enabled: expected the key once, got it again (first at f:2); remove one "
            "of the two");
  EXPECT_EQ(
      error_of("{\"zero_optimization\": {\"max_live_parameters\": 1,\n\"stage3_max_live_parameters\": 1}}"),
      "config error: f:2: zero_optimization.stage3_max_live_parameters: expected one spelling, got "
      "\"max_live_parameters\" (f:1) and \"stage3_max_live_parameters\"; remove one of the two");
  EXPECT_EQ(error_of("{\"steps_per_print\": 5,\n\"logging\": {\n\"print_interval_steps\": 5}}"),
            "config error: f:1: steps_per_print: expected this or logging.print_interval_steps, got both "
            "(f:3); remove "
            "one of the two");
  EXPECT_NE(
      error_of(
          R"({"zero_optimization": {"stage": 3, "mics_shard_size": 2}, "parallel": {"shard_group": 2}})"),
      "");
  // Keys of array items and deep paths are named too.
  EXPECT_EQ(error_of("{\"parameter_groups\": [{\"lr\": 1, \"lr\": 2}]}")
                .find("config error: f:1: parameter_groups.[].lr: expected the key once"),
            0u);
}

TEST(ConfigErrors, AllProblemsAreReportedInTheOrderOfLines) {
  const std::string error = error_of(
      "{\n\"run\": {\"steps\": 0},\n\"model\": {\"layerz\": 2},\n\"zero_optimization\": {\"stage\": 9},\n"
      "\"amp\": {\"enabled\": true}}");
  EXPECT_EQ(
      error,
      "config error: f:2: run.steps: expected an integer >= 1, got 0\n"
      "config error: f:3: model.layerz: expected a known key, got \"layerz\"; did you mean \"layers\"?\n"
      "config error: f:4: zero_optimization.stage: expected an integer from 0 to 3, got 9\n"
      "unsupported error: f:5: amp.enabled: expected false, got true; this version does not do amp.enabled "
      "= true: write bf16 or fp16 with enabled: true in its place, or remove the key");
}

TEST(ConfigErrors, SyntaxHasItsLine) {
  const auto starts = [](const std::string& text, const std::string& start) {
    const std::string error = error_of(text);
    EXPECT_EQ(error.find("config error: " + start), 0u) << text << "\n" << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  };
  starts("", "f:1: expected JSON, got a syntax error");
  starts("{\n\"model\" {}\n}", "f:2: expected JSON, got a syntax error");
  starts("{\n\"frozen\": [\n\"a\"\n\n", "f:4: expected JSON, got a syntax error");
  starts("{\n\"frozen\": [,]}", "f:2: expected JSON");
  starts("{\n\"frozen\": [\"a\",,]}", "f:2: expected JSON");
  starts("{\n,}", "f:2: expected JSON");
  starts("{} {}", "f:1: expected JSON");
  starts("{\n/* never closed", "f:2: expected \"*/\" after \"/*\"");
  starts("{\"a\": \"\n\"}", "f:1: expected JSON");
  starts("{\"a\": \"x", "f:1: expected JSON");
  starts("{\n# no\n}", "f:2: expected JSON");
  starts("{\n\n\"a\": \"\xff\"}", "f:3: expected UTF-8, got an invalid byte at offset 9");
  starts("{} // \xc0\x80", "f:1: expected UTF-8");
  starts(std::string("{}\n\0garbage", 11), "f:2: expected text, got a zero byte");
  starts("{\"a\": \"\xed\xa0\x80\"}", "f:1: expected UTF-8");  // a surrogate
  starts(std::string(100000, '['), "f:1: expected at most 64 nested objects and arrays");
  starts(std::string((1 << 20) + 1, ' '), "f:1: expected at most 1048576 bytes");
}

TEST(ConfigErrors, LinesAreExactAroundCommentsNumbersAndStrings) {
  // A number at the end of its line, after comments of every kind and strings that look like comments.
  const std::string text =
      "{ // one\n"
      "  /* two\n     three */ \"data\": {\"train\": \"http://x/*y*/\", // \"\n"
      "    \"seed\":\n"
      "      -5\n"
      "  },\n"
      "  \"run\": {\"seed\": -6\n"
      "  }, \"frozen\": [\n"
      "    \"a\\\"//b\",\n"
      "    7\n"
      "  ],\n"
      "}\n";
  EXPECT_EQ(error_of(text),
            "config error: f:5: data.seed: expected an integer >= 0 or null, got -5\n"
            "config error: f:7: run.seed: expected an integer >= 0, got -6\n"
            "config error: f:8: frozen: expected a list of globs, as \"*.bias\" or \"h.[0-3].*\", got an "
            "array of 2");
}

TEST(ConfigErrors, AutoOutsideDeepSpeedsOwnSections) {
  EXPECT_EQ(
      error_of("{\"prescale_gradients\": \"auto\"}"),
      "config error: f:1: prescale_gradients: expected true or false, got \"auto\"; \"auto\" is filled in by "
      "programs around DeepSpeed: write the value");
}

TEST(ConfigErrors, LongTextsAreShownShort) {
  const std::string error = error_of("{\"data\": {\"seed\": \"" + std::string(5000, 'x') + "\"}}");
  EXPECT_LT(error.size(), 300u);
  EXPECT_NE(error_of("{\"" + std::string(5000, 'k') + "\": 1}").find("expected a known key"),
            std::string::npos);
}

TEST(ConfigErrors, Overrides) {
  EXPECT_EQ(error_of("{}", {"zero_optimization.stage=7"}),
            "config error: --set zero_optimization.stage=7: zero_optimization.stage: expected an integer "
            "from 0 to 3, "
            "got 7");
  EXPECT_EQ(error_of("{}", {"modle.width=7"})
                .find("config error: --set modle.width=7: modle: expected a known key"),
            0u);
  EXPECT_EQ(error_of("{}", {"stage"}),
            "config error: --set stage: expected section.key=value, got \"stage\"");
  EXPECT_NE(error_of("{}", {"=3"}), "");
  EXPECT_NE(error_of("{}", {"a..b=3"}), "");
  EXPECT_NE(error_of("{}", {"model.=3"}), "");
  EXPECT_NE(error_of("{}", {"model={\"width\": "}), "");
  EXPECT_NE(error_of("{}", {"run.directory=\xff"}), "");
  EXPECT_EQ(
      error_of("{\n\"zero_optimization\": true}", {"zero_optimization.stage=2"}),
      "config error: --set zero_optimization.stage=2: zero_optimization: expected an object, got true (f:2)");
  EXPECT_EQ(
      error_of("{\"parameter_groups\": []}", {"parameter_groups.0.lr=2"}),
      "config error: --set parameter_groups.0.lr=2: parameter_groups: expected an index below 0, got \"0\"");
  std::string deep = "a";
  for (int i = 0; i < 1000; i++) deep += ".a";
  EXPECT_NE(error_of("{}", {deep + "=1"}), "");
}

TEST(ConfigErrors, FilesThatCannotBeRead) {
  const auto kind = [](const std::string& path) {
    try {
      load_config(path);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
      return error.kind();
    }
    return ErrorKind::Internal;
  };
  EXPECT_EQ(kind("/does/not/exist.json"), ErrorKind::Io);
  EXPECT_EQ(kind(std::filesystem::temp_directory_path().string()), ErrorKind::Io);
}

// Whatever bytes come, the answer is a Config or a zero::Error.
TEST(ConfigErrors, DamagedTextsNeverDoAnythingElse) {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/../configs/gpt2-demo.json");
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  ASSERT_FALSE(whole.empty());
  std::mt19937 random(7);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 3000; round++) {
    std::string text = whole;
    for (uint32_t edits = 1 + random() % 4; edits > 0; edits--) {
      const size_t at = random() % text.size();
      static constexpr char kBytes[] = "{}[],:\"/*0e-.n\\\n";
      switch (random() % 3) {
        case 0:
          text[at] = kBytes[random() % (sizeof(kBytes) - 1)];
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        default:
          text[at] = static_cast<char>(random());
          break;
      }
      if (text.empty()) break;
    }
    try {
      const Config config = parse_config(text, "f");
      EXPECT_EQ(parse_config(to_json(config)), config);
      accepted++;
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::Config || error.kind() == ErrorKind::Unsupported)
          << error.what();
      refused++;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

TEST(ConfigErrors, Fp16AndItsScale) {
  EXPECT_EQ(kind_of(R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})"), ErrorKind::Config);
  EXPECT_EQ(kind_of(R"({"fp16": {"enabled": true}, "data_types": {"param_dtype": "bf16"}})"),
            ErrorKind::Config);
  EXPECT_EQ(kind_of(R"({"fp16": {"enabled": true, "hysteresis": 0}})"), ErrorKind::Config);
  EXPECT_EQ(kind_of(R"({"fp16": {"enabled": true, "rule": "apex"}})"), ErrorKind::Config);
}

}  // namespace
}  // namespace zero
