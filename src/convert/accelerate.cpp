// accelerate's config.yaml. Its words: `accelerate config`, and the plugins' environment variables in lower
// case.

#include <functional>
#include <map>

#include "convert/target.h"
#include "zero/error.h"

namespace zero::convert {
namespace {

using Take = std::function<void(const Json& value, const std::string& name, Target& target)>;
using Table = std::map<std::string, Take, std::less<>>;

Take to(const char* path) {
  return
      [path](const Json& value, const std::string& name, Target& target) { target.set(path, value, name); };
}
Take ignored(const char* why) {
  return [why](const Json& value, const std::string& name, Target& target) {
    if (!is_off(value)) target.note(name + ": " + why);
  };
}
Take only_off(const char* instead) {
  return [instead](const Json& value, const std::string& name, Target& target) {
    if (!is_off(value)) target.refuse(name + " " + value.dump() + ": " + instead);
  };
}
// accelerate writes booleans as words in places.
bool is_on(const Json& value) { return value == true || value == "true" || value == "True" || value == 1; }

void take_all(const Json& section, const std::string& prefix, const Table& table, Target& target) {
  if (!section.is_object()) return target.refuse(prefix + ": expected a map");
  for (const auto& [key, value] : section.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    const auto known = table.find(key);
    if (known == table.end())
      target.refuse(name + ": no such key of accelerate's is known; remove it");
    else
      known->second(value, name, target);
  }
}

void take_precision(const Json& value, const std::string& name, Target& target) {
  if (value == "bf16" || value == "fp16") {
    target.set(value.get<std::string>() + ".enabled", true, name);
  } else if (is_off(value)) {
    target.fill("bf16.enabled", false);
    target.fill("fp16.enabled", false);
  } else {
    target.refuse(name + " " + value.dump() + ": expected no, bf16 or fp16; write \"bf16\"");
  }
}

Take offload_to(const char* path) {
  return [path](const Json& value, const std::string& name, Target& target) {
    if (is_off(value)) return target.fill(path, "none");
    target.set(path, value, name);
  };
}

const Table& deepspeed_keys() {
  static const Table table = {
      {"deepspeed_config_file", ignored("give the file itself as the first argument")},
      {"zero_stage", to("zero_optimization.stage")},
      {"gradient_accumulation_steps", to("gradient_accumulation_steps")},
      {"gradient_clipping", to("gradient_clipping")},
      {"train_micro_batch_size_per_gpu", to("train_micro_batch_size_per_gpu")},
      {"offload_optimizer_device", offload_to("zero_optimization.offload_optimizer.device")},
      {"offload_param_device", offload_to("zero_optimization.offload_param.device")},
      {"offload_optimizer_nvme_path", offload_to("zero_optimization.offload_optimizer.nvme_path")},
      {"offload_param_nvme_path", offload_to("zero_optimization.offload_param.nvme_path")},
      {"zero3_init_flag", ignored("models are always built sharded")},
      {"zero3_save_16bit_model", ignored("`zero consolidate` makes whole weights of a checkpoint")},
      {"deepspeed_multinode_launcher", ignored("start ranks with torchrun, mpirun, srun or zero launch")},
      {"deepspeed_hostfile", ignored("start ranks with torchrun, mpirun, srun or zero launch")},
      {"deepspeed_inclusion_filter", ignored("start ranks with torchrun, mpirun, srun or zero launch")},
      {"deepspeed_exclusion_filter", ignored("start ranks with torchrun, mpirun, srun or zero launch")},
      {"deepspeed_moe_layer_cls_names", only_off("units follow the module tree; remove it")},
  };
  return table;
}

// Stands where num_machines and num_processes say how many, until both are read.
constexpr const char* kRanksOfAMachine = "ranks of a machine";

void take_strategy(const Json& value, const std::string& name, Target& target) {
  static const std::map<std::string, int, std::less<>> stages = {
      {"FULL_SHARD", 3}, {"1", 3}, {"SHARD_GRAD_OP", 2}, {"2", 2}, {"NO_SHARD", 0}, {"3", 0}};
  const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
  // Sharded over the ranks of a machine.
  static const std::map<std::string, int, std::less<>> hybrids = {
      {"HYBRID_SHARD", 3}, {"4", 3}, {"HYBRID_SHARD_ZERO2", 2}, {"_HYBRID_SHARD_ZERO2", 2}, {"5", 2}};
  if (const auto hybrid = hybrids.find(word); hybrid != hybrids.end()) {
    target.set("zero_optimization.stage", hybrid->second, name);
    return target.set("parallel.shard_group", kRanksOfAMachine, name);
  }
  const auto known = stages.find(word);
  if (known != stages.end()) return target.set("zero_optimization.stage", known->second, name);
  target.refuse(name + " " + word + ": expected FULL_SHARD, SHARD_GRAD_OP, NO_SHARD or HYBRID_SHARD");
}

const Table& fsdp_keys() {
  static const Table table = {
      {"fsdp_version", ignored("the engine is the same for both")},
      {"fsdp_sharding_strategy", take_strategy},
      {"fsdp_reshard_after_forward",
       [](const Json& value, const std::string& name, Target& target) {
         // Version 1 has the strategies' words here.
         if (value.is_string() && value != "true" && value != "false" && value != "True" && value != "False")
           return take_strategy(value, name, target);
         target.set("zero_optimization.stage", is_on(value) ? 3 : 2, name);
       }},
      {"fsdp_offload_params",
       [](const Json& value, const std::string& name, Target& target) {
         if (!is_on(value)) return;
         target.set("zero_optimization.offload_param.device", "cpu", name);
         target.set("zero_optimization.offload_optimizer.device", "cpu", name);
       }},
      {"fsdp_activation_checkpointing",
       [](const Json& value, const std::string& name, Target& target) {
         if (is_on(value)) target.set("activation_checkpointing.recompute", "all", name);
       }},
      {"fsdp_auto_wrap_policy", ignored("units follow the module tree, no policy is needed")},
      {"fsdp_transformer_layer_cls_to_wrap", ignored("units follow the module tree, no policy is needed")},
      {"fsdp_min_num_params", ignored("units follow the module tree, no policy is needed")},
      {"fsdp_backward_prefetch", ignored("units are fetched ahead as residency.prefetch allows")},
      {"fsdp_backward_prefetch_policy", ignored("units are fetched ahead as residency.prefetch allows")},
      {"fsdp_forward_prefetch", ignored("units are fetched ahead as residency.prefetch allows")},
      {"fsdp_cpu_ram_efficient_loading", ignored("each rank reads its own slices")},
      {"fsdp_sync_module_states", ignored("initial values are the same on all ranks")},
      {"fsdp_state_dict_type", ignored("checkpoints are sharded")},
      {"fsdp_use_orig_params", ignored("parameters stay as they are")},
      {"fsdp_limit_all_gathers", ignored("units are fetched as residency.budget allows")},
      {"fsdp_mixed_precision_policy",
       only_off("mixed_precision and data_types say what types there are; remove it")},
      {"fsdp_ignored_modules", only_off("every module is sharded; remove it")},
      {"fsdp_device_mesh_shape", only_off("write parallel.shard_group, the ranks of a group")},
      {"fsdp_shard_size", only_off("write parallel.shard_group, the ranks of a group")},
  };
  return table;
}

Take above_one(const char* path) {
  return [path](const Json& value, const std::string& name, Target& target) {
    if (!is_off(value) && value != 1) target.set(path, value, name);
  };
}
Take only_one(const char* instead) {
  return [instead](const Json& value, const std::string& name, Target& target) {
    if (!is_off(value) && value != 1) target.refuse(name + " " + value.dump() + ": " + instead);
  };
}

const Table& parallelism_keys() {
  static const Table table = {
      {"parallelism_config_tp_size", above_one("parallel.tensor")},
      {"parallelism_config_dp_shard_size", ignored("the ranks that are left share states")},
      {"parallelism_config_dp_replicate_size",
       only_one("write parallel.shard_group, the ranks of a group that shares states")},
      {"parallelism_config_cp_size", only_one("sequences are not cut over ranks that attend; remove it")},
      {"parallelism_config_cp_comm_strategy", ignored("sequences are not cut")},
      {"parallelism_config_cp_backend", ignored("sequences are not cut")},
      {"parallelism_config_cp_handler", ignored("sequences are not cut")},
      {"parallelism_config_sp_size", only_one("sequences are not cut over ranks that attend; remove it")},
      {"parallelism_config_sp_backend", ignored("sequences are not cut")},
      {"parallelism_config_sp_handler", ignored("sequences are not cut")},
  };
  return table;
}

Take section(const Table& (*keys)()) {
  return [keys](const Json& value, const std::string& name, Target& target) {
    if (!is_off(value)) take_all(value, name, keys(), target);
  };
}

const Table& top_keys() {
  static const Table table = {
      {"compute_environment", ignored("ranks come from the launcher")},
      {"distributed_type", ignored("what the sections say is taken")},
      {"debug", ignored("the engine's checks are always on")},
      {"mixed_precision", take_precision},
      {"num_processes", to("parallel.ranks")},
      {"gradient_accumulation_steps", to("gradient_accumulation_steps")},
      {"use_cpu",
       [](const Json& value, const std::string& name, Target& target) {
         if (is_on(value)) target.set("parallel.backend", "cpu", name);
       }},
      {"deepspeed_config", section(deepspeed_keys)},
      {"fsdp_config", section(fsdp_keys)},
      {"num_machines", ignored("ranks come from the launcher")},
      {"machine_rank", ignored("ranks come from the launcher")},
      {"main_process_ip", ignored("ranks come from the launcher")},
      {"main_process_port", ignored("ranks come from the launcher")},
      {"main_training_function", ignored("zero trains what the configuration says")},
      {"rdzv_backend", ignored("ranks come from the launcher")},
      {"same_network", ignored("ranks come from the launcher")},
      {"gpu_ids", ignored("CUDA_VISIBLE_DEVICES says which devices there are")},
      {"enable_cpu_affinity", ignored("parallel.bind_cores gives each rank cores of its own")},
      {"commands", ignored("ranks come from the launcher")},
      {"command_file", ignored("ranks come from the launcher")},
      {"mpirun_config", ignored("ranks come from the launcher")},
      {"monitor_interval", ignored("ranks come from the launcher")},
      {"max_restarts", ignored("ranks come from the launcher")},
      {"tpu_name", ignored("there are no TPUs")},
      {"tpu_zone", ignored("there are no TPUs")},
      {"tpu_env", ignored("there are no TPUs")},
      {"tpu_use_cluster", ignored("there are no TPUs")},
      {"tpu_use_sudo", ignored("there are no TPUs")},
      {"downcast_bf16", only_off("write mixed_precision: bf16")},
      {"dynamo_config", only_off("nothing is compiled; remove it")},
      {"dynamo_backend", only_off("nothing is compiled; remove it")},
      {"megatron_lm_config", only_off("write parallel.tensor, parallel.pipeline and parallel.sequence")},
      {"parallelism_config", section(parallelism_keys)},
      {"fp8_config", only_off("there is no fp8; write mixed_precision: bf16")},
      {"ipex_config", ignored("the CPU's kernels are the engine's own")},
  };
  return table;
}

// HYBRID_SHARD's groups. On one machine they are all ranks, which is no group of their own.
void settle_shard_group(const Json& accelerate, Target& target) {
  if (target.at("parallel.shard_group") != kRanksOfAMachine) return;
  const Json ranks = accelerate.value("num_processes", Json()),
             machines = accelerate.value("num_machines", Json());
  const bool known = ranks.is_number_integer() && machines.is_number_integer() && machines > 0 &&
                     ranks.get<int64_t>() % machines.get<int64_t>() == 0;
  if (!known)
    target.refuse(
        "fsdp_config: HYBRID_SHARD: num_processes and num_machines do not say how many ranks a machine has; "
        "write FULL_SHARD, and parallel.shard_group");
  const int64_t group = known && machines != 1 ? ranks.get<int64_t>() / machines.get<int64_t>() : 0;
  target.replace("parallel.shard_group", group == 0 ? Json() : Json(group));
}

}  // namespace

void take_accelerate(const Json& accelerate, Target& target) {
  require(accelerate.is_object(), ErrorKind::Config, "accelerate's configuration", "expected a map");
  take_all(accelerate, "", top_keys(), target);
  settle_shard_group(accelerate, target);
}

}  // namespace zero::convert
