"""DeepSpeed's ZeRO on CPU with its own AdamW, at its default bucket sizes."""
from driver import main


def build(arguments, model):
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
        "train_micro_batch_size_per_gpu": arguments.batch,
        "gradient_accumulation_steps": arguments.grad_accum,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "bf16": {"enabled": arguments.dtype == "bf16"},
        "zero_optimization": {"stage": int(arguments.mode[4])},
        "steps_per_print": 10**9})

    def step(micro_batches):
        total = 0.0
        for tokens, targets in micro_batches:
            loss = engine(tokens, targets)
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / len(micro_batches)
        return total

    return step


if __name__ == "__main__":
    main("deepspeed", ["zero0", "zero1", "zero2", "zero3"], build)
