// Memory that kernels work in: this process's where they are emulated (memory.cpp), else the GPU's (memory.cu).
#pragma once

#include <cstddef>

namespace device {

void* give(std::size_t bytes);  // full of nans; ends where it ends
void take(void* memory);
void up(void* to, const void* from, std::size_t bytes);
void down(void* to, const void* from, std::size_t bytes);  // once all that was launched is done

}  // namespace device
