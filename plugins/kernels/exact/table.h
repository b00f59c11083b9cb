// The table of an instruction set's kernels; DITTO_EXACT_TABLE, its name and score come from the source that includes
// this.
#pragma once

#include "convolution.h"
#include "maps.h"
#include "routing.h"

namespace ditto_exact {

extern const Kernels DITTO_EXACT_TABLE;
const Kernels DITTO_EXACT_TABLE{
    DITTO_EXACT_VARIANT,           DITTO_EXACT_SCORE,          DITTO_EXACT_NS::product,
    DITTO_EXACT_NS::gelu,          DITTO_EXACT_NS::gelu_back,  DITTO_EXACT_NS::gelu_erf,
    DITTO_EXACT_NS::gelu_erf_back, DITTO_EXACT_NS::silu,       DITTO_EXACT_NS::silu_back,
    DITTO_EXACT_NS::norm,          DITTO_EXACT_NS::norm_back,  DITTO_EXACT_NS::row_sum,
    DITTO_EXACT_NS::gate,          DITTO_EXACT_NS::add,        DITTO_EXACT_NS::fill,
    DITTO_EXACT_NS::total,         DITTO_EXACT_NS::attention,  DITTO_EXACT_NS::attention_back,
    DITTO_EXACT_NS::adamw,         DITTO_EXACT_NS::softmax,    DITTO_EXACT_NS::softmax_back,
    DITTO_EXACT_NS::add_scaled,    DITTO_EXACT_NS::dot,        DITTO_EXACT_NS::map_product,
    DITTO_EXACT_NS::map_grad,      DITTO_EXACT_NS::group_norm, DITTO_EXACT_NS::group_norm_back,
    DITTO_EXACT_NS::number_sums,   DITTO_EXACT_NS::add_number, DITTO_EXACT_NS::mix};

}  // namespace ditto_exact
