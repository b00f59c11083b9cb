// The kernels of plugins/kernels/cuda against references in fp64: `cuda_kernels [ORDER] [WORD]`, in an order of threads
// and blocks where they are emulated, and only sources of tests with the word in their name. A line a case, with a hash
// of all its results' bits: the same in any order, and on a GPU. Exits with 1 where a case is wrong.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"
#if !defined(ON_GPU)
#include "emulated.h"
#endif

int main(int argc, char** argv) {
#if !defined(ON_GPU)
  emulated::set_order(argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 0);
#endif
  const struct {
    const char* name;
    void (*run)();
  } tests[] = {{"norms", check::norms}};
  for (const auto& test : tests)
    if (argc < 3 || std::strstr(test.name, argv[2])) test.run();
  if (check::Case::failed() > 0) std::printf("%d cases are WRONG\n", check::Case::failed());
  return check::Case::failed() > 0;
}
