// What a step reads back from its tensors: on a GPU each reading makes the host wait for all that was asked before.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include <ATen/record_function.h>

#include "tests/support/tiny_training.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

int64_t readings = 0;

// A number taken from a tensor, or a shape that depends on numbers.
std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
  static const std::set<std::string> kReads{"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select",
                                            "aten::_unique2", "aten::equal"};
  readings += static_cast<int64_t>(kReads.count(call.name()));
  return nullptr;
}

// Of the third step, by this thread, which computes all of it.
int64_t readings_of(const std::string& model, const std::vector<std::string>& sets) {
  test::TinyTraining tiny(model, sets);
  auto training = tiny.step();
  training.expect(0);
  for (int64_t step = 0; step < 2; ++step) training.run(step);
  readings = 0;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  training.run(2);
  at::removeCallback(handle);
  return readings;
}

TEST_CASE(
    "a step reads two numbers, its norm and the wish to stop, whatever the depth and the number of micro-batches") {
  // LibTorch's own AdamW for the CPU reads its step's number for every parameter; on a GPU it does not.
  for (const std::string model : {"dit_text", "st_dit"})
    for (const char* set : {"run.batch=8", "model.depth=4", "run.micro_batch=2"}) {
      CAPTURE(model);
      CAPTURE(set);
      CHECK(readings_of(model, {"optimizer.plugin=sgd", "run.batch=8", set}) == 2);
    }
}

}  // namespace
}  // namespace ditto
