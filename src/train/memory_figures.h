#pragma once

#include "zero/block_chain.h"
#include "zero/engine.h"
#include "zero/memory_figures.h"
#include "zero/trace.h"

namespace zero::training {

/// Of an engine and the chain of its model's blocks, now.
MemoryFigures memory_figures(const Engine& engine, const EngineStats& stats, const BlockChain& chain);
/// Of both, since the run began.
DiskFigures disk_figures(const EngineStats& stats, const BlockChain& chain);
/// Of the time between.
DiskFigures difference(const DiskFigures& now, const DiskFigures& before);

/// Rows of counters in a trace: a row a tier, and the disk's rates over the step that has just ended.
void add_counters(Trace& trace, const MemoryFigures& memory, const DiskFigures& disk, double step_s);

}  // namespace zero::training
