# What the examples about trained models are tested with: a small GPT-2 as a model directory of Hugging Face's, WORK/model.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK}/tokenizer)
file(COPY_FILE ${SOURCE}/tests/golden/tokenizer/tiny.json ${WORK}/tokenizer/tokenizer.json)
file(WRITE ${WORK}/train.json [[{
  "train_batch_size": 8,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
  "model": {"layers": 2, "width": 64, "heads": 4, "context_length": 64},
  "data": {"train": "train.tokens", "tokenizer": "tokenizer", "sequence_length": 32},
  "run": {"directory": "run", "steps": 60}
}]])

function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${ZERO} tokenize ${SOURCE}/docs/training.md ${SOURCE}/docs/design.md ${SOURCE}/docs/memory_model.md --tokenizer tokenizer --out train.tokens)
run(${ZERO} train train.json)
run(${ZERO} consolidate run model)
