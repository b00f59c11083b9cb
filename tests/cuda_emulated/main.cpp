// The kernels of plugins/kernels/cuda against references in fp64: `cuda_kernels [ORDER [STORAGE [WORD]]]`: in which
// order of threads and blocks, where they are emulated; of numbers of which storage (all: of each); only tests with the
// word in their name. A line a case, with a hash of all its results' bits: the same in any order, and on a GPU. Exits
// with 1 where a case is wrong.
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
  if (argc > 2 && std::strcmp(argv[2], "all") != 0 && !check::only(argv[2])) {
    std::fprintf(stderr, "there is no storage %s; expected fp32, bf16, fp16 or all\n", argv[2]);
    return 2;
  }
  const struct {
    const char* name;
    void (*run)();
  } tests[] = {
    {"norms", check::norms},
    {"rows", check::rows},
    {"updates", check::updates},
    {"products", check::products},
#if !defined(WITHOUT_CUBLASLT)
    {"library", check::library_products},
#endif
    {"maps", check::group_norms}
  };
  for (const auto& test : tests)
    if (argc < 4 || std::strstr(test.name, argv[3])) test.run();
  if (check::Case::failed() > 0) std::printf("%d cases are WRONG\n", check::Case::failed());
  return check::Case::failed() > 0;
}
