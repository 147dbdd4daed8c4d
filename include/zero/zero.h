#pragma once
// Everything, for programs that do not mind. Each header stands alone.

#include "zero/checkpoint.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/generate.h"
#include "zero/gpt2.h"
#include "zero/launch.h"
#include "zero/lazy.h"
#include "zero/lr_schedule.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/sampler.h"
#include "zero/token_file.h"
#include "zero/tokenizer.h"
#include "zero/zero_redundancy_optimizer.h"
