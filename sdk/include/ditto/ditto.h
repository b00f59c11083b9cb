// Everything a model, schedule, sampler, guidance, cache, objective, optimizer, kernel, encoder or data plugin needs.
// Strategies include <ditto/parallel/strategy.h> as well.
#pragma once

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/batch.h>
#include <ditto/cache.h>
#include <ditto/context.h>
#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/error.h>
#include <ditto/exchange/foreign.h>
#include <ditto/guidance.h>
#include <ditto/kernels.h>
#include <ditto/math/elementary.h>
#include <ditto/math/random.h>
#include <ditto/model.h>
#include <ditto/network.h>
#include <ditto/nn.h>
#include <ditto/nn/attention.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/options.h>
#include <ditto/plugin.h>
#include <ditto/sampler.h>
#include <ditto/scheduler.h>
#include <ditto/stream.h>
#include <ditto/units.h>
#include <ditto/version.h>
