# One operation of IEEE arithmetic where one is written, so that the emulation (tests/cuda_emulated) has a GPU's bits.
set_source_files_properties(${cuda_sources} PROPERTIES COMPILE_OPTIONS "-fmad=false")
