// Kernels that are emulated work in a mock GPU's memory.
#include "tests/mock_gpu/memory.h"

#include "tests/cuda_emulated/emulated.h"

emulated::Memory::Memory(void* stream) : open_(std::make_shared<mock_gpu::Kernel>(stream)) {}
emulated::Memory::~Memory() = default;
