#pragma once

namespace ditto_cpu {

// How a kernel's numbers lie in memory, those that come in and those that go out; it computes in fp32.
enum class Storage { fp32, bf16 };

}  // namespace ditto_cpu
